"""The engines a gateway knows: discovery, links, views, picker."""
