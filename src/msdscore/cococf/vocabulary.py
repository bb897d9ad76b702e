"""Words that a counterfactual may exchange: objects of COCO, attributes and relations, with what each is near to.

A concept belongs to a family (the supercategory of an object, a pole of an attribute, a sort of action). Concepts that
can be true of the same thing, such as gray and silver, are near synonyms and never stand for each other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

ChangeKind = Literal["object", "attribute", "relation"]


def word_set(text: str) -> frozenset[str]:
    """The words of a list that is written as one text."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Concept:
    """One thing that a caption can say.

    `slot` names the place in a sentence that it fits (for objects always `noun`); concepts of one slot can stand for
    each other. `singular` and `plural` are its forms, None where it has none.
    """

    name: str
    kind: ChangeKind
    family: str
    slot: str
    singular: str | None
    plural: str | None = None
    near: frozenset[str] = frozenset()

    @property
    def animate(self) -> bool:
        """Whether it is a person or an animal."""
        return self.family in ("person", "animal")


# A class per line: name; the form that is put in and its plural, where they are not the name and name + s; other words
# for it, which show that it was named. A form of - is one that the class does not have.
_OBJECTS = """\
person
person: ; people;  ; human humans someone passenger rider player skier surfer skater child kid children kids baby \
adult crowd family couple officer chef worker student tourist snowboarder skateboarder biker cyclist pedestrian players
vehicle
bicycle: ; ; bike bikes cyclist biker
car: ; ; sedan van minivan taxi cab suv automobile jeep vehicle vehicles traffic cars
motorcycle: ; ; motorbike scooter moped motorcyclist bike bikes motor
airplane: ; ; plane planes jet jets aircraft jetliner biplane airliner
bus: ; buses; minibus coach trolley busses
train: ; ; locomotive tram subway railway engine trolley
truck: ; ; pickup lorry firetruck van vehicle vehicles
boat: ; ; ship sailboat canoe kayak yacht ferry raft rowboat barge ships boats
outdoor
traffic light: ; ; stoplight streetlight signal lights
fire hydrant: ; ; hydrant hydrants
stop sign: ; ; sign signs
parking meter: ; ; meter meters
bench: ; benches; pew seat seats
animal
bird: ; ; seagull duck goose owl parrot pigeon swan ducks geese seagulls gull gulls flamingo crow eagle rooster chicken
cat: ; ; kitten kitty feline kittens cats
dog: ; ; puppy puppies pup hound terrier canine poodle
horse: ; ; pony ponies stallion mare colt foal
sheep: ; sheep; lamb lambs ram goat goats ewe
cow: ; ; cattle bull calf ox bison buffalo herd steer calves bulls
elephant
bear: ; ; cub cubs panda pandas
zebra
giraffe
accessory
backpack: ; ; knapsack bag bags rucksack
umbrella: ; ; parasol parasols
handbag: ; ; purse bag bags wallet purses
tie: necktie; neckties; tie ties bow suit
suitcase: ; ; luggage bag bags briefcase baggage
sports
frisbee: ; ; disc disk frizbee
skis: -; skis; ski skier skiers skiing
snowboard: ; ; snowboarder snowboarding board boards snowboarders
sports ball: ball; balls; football baseball basketball soccer tennis volleyball
kite: ; ; parasail kites
baseball bat: ; ; bat bats batter
baseball glove: ; ; glove gloves mitt catcher
skateboard: ; ; skateboarder skateboarding board boards skateboarders skater
surfboard: ; ; surfer surfing board boards surfers wakeboard
tennis racket: ; ; racket racquet rackets racquets raquet
kitchen
bottle: ; ; bottles jar wine beer
wine glass: ; wine glasses; glass glasses goblet wine
cup: ; ; mug mugs glass glasses coffee tea
fork: ; ; utensils silverware utensil
knife: ; knives; blade utensils silverware utensil
spoon: ; ; utensils silverware utensil ladle
bowl: ; ; dish container dishes containers bowls
food
banana: ; ; fruit fruits
apple: ; ; fruit fruits
sandwich: ; sandwiches; burger hamburger sub wrap panini toast burgers
orange: ; ; fruit fruits citrus tangerine mandarin
broccoli: -; broccoli; vegetable vegetables veggies florets greens
carrot: ; ; vegetable vegetables veggies
hot dog: ; ; hotdog hotdogs sausage bun sausages buns
pizza: ; ; pie slice slices
donut: ; ; doughnut doughnuts pastry pastries bagel dessert
cake: ; ; cupcake cupcakes dessert cheesecake pastry pastries pie
furniture
chair: ; ; seat stool seats stools armchair recliner sofa
couch: ; couches; sofa sofas loveseat futon seat settee
potted plant: plant; plants; houseplant flower flowers pot pots tree trees
bed: ; ; mattress bunk bedroom bedspread
dining table: table; tables; desk counter desks surface
toilet: ; ; urinal bathroom restroom toilets urinals
electronic
tv: television; televisions; tv tvs monitor screen screens monitors
laptop: ; ; computer computers notebook macbook laptops
mouse: computer mouse; computer mice; mouse mice
remote: remote control; remote controls; remote remotes controller wii controllers
keyboard: ; ; keys keyboards
cell phone: ; ; phone phones cellphone cellphones smartphone iphone telephone
appliance
microwave: ; ; oven microwaves
oven: ; ; stove stovetop range stoves
toaster
sink: ; ; basin faucet bathroom sinks
refrigerator: ; ; fridge freezer fridges refridgerator
indoor
book: ; ; books novel magazine bookshelf bookcase
clock: ; ; watch clocks clocktower
vase: ; ; jar pot vases
scissors: -; scissors; shears
teddy bear: ; ; teddy stuffed toy toys teddybear
hair drier: hair dryer; hair dryers; blowdryer dryer drier hairdryer
toothbrush: ; toothbrushes; toothbrushes brush
"""
# Forms of people that a caption tells apart; each may stand for the other of its line.
_PEOPLE = (("man", "woman"), ("men", "women"), ("boy", "girl"), ("boys", "girls"))
# slot: families in brackets, words with their near synonyms behind a stroke.
_QUALITIES = """\
colour: [warm] red/maroon/reddish orange/gold/golden/yellow/tan yellow/gold/golden/orange/blonde pink/purple/red \
[cool] blue/navy/teal/turquoise green/teal/turquoise/leafy/grassy purple/violet/pink/lavender \
[neutral] black/dark white/cream/beige/snowy/silver gray/grey/silver/dark brown/tan/beige/wooden/wood/golden
size: [large] large/big/huge/giant/tall/massive/long [small] small/little/tiny/short/miniature/baby/young
age: [young] young/little/small/baby/child/kid [old] old/elderly/older/vintage/antique/senior
material: [wood] wooden/wood [metal] metal/steel/silver/stainless/metallic/iron [plastic] plastic \
[stone] stone/rock/brick/concrete/cement brick/stone/concrete [glass] glass/clear
number: [two] two/couple/pair/both/double [three] three/trio/several [four] four/several [five] five/several \
[six] six/several/group
state: [empty] empty/vacant/deserted [full] full/filled/crowded
water: [wet] wet/rainy/soaked/rain [dry] dry
clean: [clean] clean/neat/tidy [dirty] dirty/messy/muddy/dusty
lid: [open] open/opened [closed] closed/shut
weather: [sunny] sunny/bright/clear/sun [cloudy] cloudy/overcast/clouds/gray [snowy] snowy/snow [rainy] rainy/rain/wet
pattern: [striped] striped/stripes/stripe [plaid] plaid/checkered/checked [floral] floral/flowered/flowers
"""
_RELATIONS = """\
posture: [rest] sitting/seated/sits/sit lying/laying/lies/lays/sleeping/asleep/resting/laid kneeling/crouching/kneels \
[upright] standing/stands/stand/posing/stood [motion] walking/walks/walk/strolling/crossing running/runs/run/jogging \
jumping/jumps/leaping/jump [water] swimming/swims/swim
postures: [rest] sits/sitting/seated/sit lies/lays/lying/laying/sleeping/sleeps/resting/rests \
[upright] stands/standing/stand/posing/poses [motion] walks/walking/walk/strolls/crosses runs/running/run \
jumps/jumping/leaps/leaping
handling: [carry] carrying/carries/holding/holds/carry pushing/pushes/push pulling/pulls/dragging/pull \
[food] eating/eats/eat/biting/chewing/taking cutting/cuts/slicing/cut \
[play] throwing/throws/tossing/throw/pitching kicking/kicks/kick catching/catches/catch \
[ride] riding/rides/ride/driving/rider [care] washing/washes/cleaning/wash petting/pets/touching painting/paints \
[hold] holding/holds/carrying/hold/grabbing/eating/using/with
"""
# Longer places first; what may stand for them: clearly wrong ones, then confusable ones.
_PLACES = """\
on top of: underneath | next to
in front of: on top of | behind
to the left of: on top of | to the right of
to the right of: on top of | to the left of
next to: on top of, underneath |
on the left: | on the right
on the right: | on the left
underneath: on top of | next to
beneath: on top of | next to
under: on top of | next to
beside: on top of, underneath |
behind: on top of | in front of
above: under | next to
below: above | next to
inside: | outside
outside: | inside
on: under | next to, behind
"""
# What one can be put on, beside and under.
SUPPORTS = word_set(
    "table desk bed couch sofa bench chair counter shelf tree bridge car truck bus boat plate box umbrella "
    "roof cart stool nightstand dresser cabinet stove suitcase log rock trailer platform wagon rug blanket"
)


@dataclass(frozen=True, slots=True)
class Place:
    """What may stand for a relation of place."""

    easy: tuple[str, ...]
    hard: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All concepts by kind, and the words that show each of them."""

    objects: Mapping[str, Concept]
    shown_by: Mapping[str, frozenset[str]]  # by class, every word that may name it
    qualities: Mapping[str, Concept]  # attributes by word
    actions: Mapping[str, Concept]  # relations between -ing, and -s
    places: Mapping[str, Place]  # relations of place, longest first
    people: Mapping[str, str]  # man -> woman


@cache
def vocabulary() -> Vocabulary:
    """The words of this module, read once."""
    objects, shown_by = _objects()
    return Vocabulary(
        objects=objects,
        shown_by=shown_by,
        qualities=_concepts(_QUALITIES, "attribute"),
        actions=_concepts(_RELATIONS, "relation"),
        places=_places(),
        people={one: other for pair in _PEOPLE for one, other in (pair, pair[::-1])},
    )


def with_article(noun: str, *, capital: bool = False) -> str:
    """A singular noun phrase behind its article.

    >>> with_article("umbrella"), with_article("unicycle"), with_article("hot dog", capital=True)
    ('an umbrella', 'a unicycle', 'A hot dog')
    """
    found = f"{article(noun)} {noun}"
    return found.capitalize() if capital else found


def article(word: str) -> str:
    """`a` or `an`, by the sound that a word begins with."""
    vowel = word[:1].lower() in "aeiou" and not word.lower().startswith(("uni", "use", "one", "eu"))
    return "an" if vowel or word.lower().startswith("hour") else "a"


def _objects() -> tuple[dict[str, Concept], dict[str, frozenset[str]]]:
    objects: dict[str, Concept] = {}
    shown: dict[str, frozenset[str]] = {}
    family = ""
    for line in _OBJECTS.splitlines():
        name, colon, rest = line.partition(":")
        if not colon and name in _FAMILIES:
            family = name
            continue
        singular, plural, *more = [part.strip() for part in rest.split(";")] if colon else ["", ""]
        one = None if singular == "-" else singular or name
        many = plural or f"{singular or name}s"
        objects[name] = Concept(name, "object", family, "noun", one, many)
        others = " ".join(more).split()
        shown[name] = frozenset(filter(None, [name, one, many, f"{name}s", *others]))
    shown["person"] |= {word for pair in _PEOPLE for word in pair} | {"lady", "ladies", "guy", "guys", "male", "female"}
    return objects, shown


_FAMILIES = word_set(
    "person vehicle outdoor animal accessory sports kitchen food furniture electronic appliance indoor"
)


def _concepts(text: str, kind: ChangeKind) -> dict[str, Concept]:
    found: dict[str, Concept] = {}
    for line in text.splitlines():
        slot, _, rest = line.partition(":")
        family = ""
        for part in rest.split():
            if part.startswith("["):
                family = part.strip("[]")
                continue
            word, *near = part.split("/")
            found[word] = Concept(word, kind, family, slot, word, near=frozenset(near))
    return found


def _places() -> dict[str, Place]:
    found = {}
    for line in _PLACES.splitlines():
        name, _, rest = line.partition(":")
        easy, hard = (tuple(_listed(part)) for part in rest.split("|"))
        found[name] = Place(easy, hard)
    return found


def _listed(text: str) -> Iterable[str]:
    return filter(None, (part.strip() for part in text.split(",")))
