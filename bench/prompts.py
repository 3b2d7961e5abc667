"""Three prompt sets for the load generator, made from a fixed seed and our own word lists.

Token counts are for SmolLM2's tokenizer with its chat template: ``chat`` short questions of about
45 tokens; ``long`` unique texts of about 500, no two of which share a beginning; ``prefix`` one
system text of about 700 with a unique tail of about 34.
"""

import random

Messages = list[dict[str, str]]

SEED = 20_261
COUNT = 512
SETS = ("chat", "long", "prefix")


def _words(text: str) -> list[str]:
    return text.split(",")


_PEOPLE = _words(
    "a nurse,a ferry pilot,a baker,a new teacher,a night guard,a beekeeper,a violin maker,"
    "a retired judge,a farm vet,a map drawer,a dock worker,a young cook"
)
_TOPICS = _words(
    "tides,rust,bread,glaciers,copper wire,bird migration,tax forms,clock springs,sleep,compost,"
    "bicycle gears,radio noise,soap,paper folding,lightning,cheese,salt mines,roof tiles,memory,"
    "traffic lights,violin strings,river deltas,batteries,chess openings,fog,honey,concrete,dreams"
)
_ASKS = (
    "Explain {t} to {p} in plain words, and give one example from daily life.",
    "What should {p} know about {t} before the first day of work?",
    "Write a short note from {p} to a friend about {t} and {u}.",
    "Give three surprising facts that link {t} with {u}, as {p} would tell them.",
    "How would {p} test whether {t} matters more than {u}?",
    "Tell a tiny story in which {p} learns something about {t} and {u}.",
)
_SUBJECTS = _words(
    "The crew,A visitor,Our neighbour,The council,One student,The oldest clerk,A small team,"
    "The engineer,Nobody,The captain,A stranger,The editor"
)
_VERBS = _words(
    "measured,repaired,painted,forgot,described,moved,counted,sold,borrowed,tested,drew,cleaned,"
    "argued about,wrote down,weighed,photographed"
)
_OBJECTS = _words(
    "the north bridge,an old pump,three wooden crates,the harbour lights,a broken clock,"
    "the winter ledger,a row of lamps,the east wall,a sack of grain,the ferry timetable,"
    "a map of the valley,the school roof,two copper pipes,a letter from abroad,the last train"
)
_TIMES = _words(
    "before sunrise,during the storm,after the meeting,on a quiet Tuesday,in late autumn,"
    "while it rained,near midnight,at the end of the month,when the power failed,"
    "for the second time,without any help,under a grey sky"
)


def _question(rng: random.Random) -> str:
    topic, other = rng.sample(_TOPICS, 2)
    return rng.choice(_ASKS).format(p=rng.choice(_PEOPLE), t=topic, u=other)


def _text(rng: random.Random, words: int) -> str:
    sentences: list[str] = []
    count = 0
    while count < words:
        parts = (_SUBJECTS, _VERBS, _OBJECTS, _TIMES)
        sentence = " ".join(rng.choice(part) for part in parts) + "."
        sentences.append(sentence)
        count += sentence.count(" ") + 1
    return " ".join(sentences)


def prompts(name: str) -> list[Messages]:
    """Return the ``COUNT`` conversations of the set ``name``, the same ones at every call."""
    rng = random.Random(f"{SEED} {name}")
    if name == "chat":
        return [[{"role": "user", "content": _question(rng)}] for _ in range(COUNT)]
    if name == "long":
        return [
            [{"role": "user", "content": f"Report {rng.randrange(10**6)}: {_text(rng, 408)}"}]
            for _ in range(COUNT)
        ]
    if name != "prefix":
        raise ValueError(f"no prompt set {name!r}; known: {', '.join(SETS)}")
    system = f"You answer questions for a town archive from these records. {_text(rng, 575)}"
    return [
        [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Case {index}. {_question(rng)}"},
        ]
        for index in range(COUNT)
    ]
