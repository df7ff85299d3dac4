"""What boards are called: ids that are safe to read aloud, and names people remember."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Container, Sequence

from aboard.boards.errors import BadValue

ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""Letters and digits that nobody mistakes for one another."""
ID_LENGTH = 12
LONGEST_NAME = 64

_NAME = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,{LONGEST_NAME - 2}}}[A-Za-z0-9])?")


def _words(text: str) -> list[str]:
    return text.split()


_HOW = _words("""
    barely boldly briskly calmly clearly evenly fairly firmly freshly gently gladly greatly
    hardly highly justly keenly kindly largely lightly likely loosely mainly mildly mostly
    neatly nicely oddly openly partly plainly politely proudly purely quickly quietly rarely
    readily really richly safely sharply simply slowly smoothly softly solely surely swiftly
    tidily truly warmly widely wisely
""")
_LIKE = _words("""
    able agile amber azure bold brave bright brisk calm cheerful clear clever cosy crisp cute
    deft eager early fair fast fine fond frank fresh gentle glad golden grand green happy humble
    jolly keen kind light lively loyal lucid lucky mellow merry mild modest neat noble novel
    olive patient plain polite proud quick quiet rapid ready round sharp shiny silent silver
    simple sleek smart snug solid steady still sunny swift tall tender tidy vivid warm wise witty
    young
""")
_ANIMAL = _words("""
    adder alpaca badger bat bear beaver bee bison boar bream bunting camel carp cat cod condor
    coot crab crane cricket crow deer dingo dolphin dormouse dove duck eagle eel egret eland elk
    falcon ferret finch fox frog gecko gibbon goat goose grebe grouse gull hare hawk hedgehog
    heron hornet horse ibex ibis iguana jackal jaguar jay kestrel kite kiwi koala lark lemur
    leopard lion lizard llama lobster lynx magpie marten mink mole moose moth mouse mule newt
    ocelot octopus orca oriole osprey otter owl ox panda parrot pelican perch pigeon pike plover
    pony puffin puma quail rabbit raven robin salmon seal shrew shrimp skunk sloth snail snipe
    sparrow squid stoat stork swan swift tapir tern tiger toad trout tuna turtle viper vole
    walrus wasp weasel whale wolf wombat wren yak zebra
""")

Choose = Callable[[Sequence[str]], str]


def new_id(choose: Choose = secrets.choice) -> str:
    """Make up an id."""
    return "".join(choose(ALPHABET) for _ in range(ID_LENGTH))


def new_name(taken: Container[str] = (), choose: Choose = secrets.choice) -> str:
    """Make up a name such as 'rarely-cute-otter' that is not taken."""
    name = _invent(choose)
    number = 2
    while name in taken:
        # There are half a million; whoever has most of them gets numbers.
        name = f"{_invent(choose)}-{number}" if number > 20 else _invent(choose)
        number += 1
    return name


def _invent(choose: Choose) -> str:
    return "-".join(choose(words) for words in (_HOW, _LIKE, _ANIMAL))


def check_name(name: str) -> str:
    """Return a name that somebody chose, if it can be typed and put into an address.

    Raises:
        BadValue: it cannot.
    """
    if _NAME.fullmatch(name):
        return name
    raise BadValue(
        f"{name[:80]!r} cannot be a board's name.",
        f"Use up to {LONGEST_NAME} letters, digits, '.', '_' and '-', with a letter or digit "
        "first and last.",
    )
