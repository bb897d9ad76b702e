"""Words that can stand in for each other in a caption, class by class, for hard negatives by rule."""

# The first word of a line names the class and its kind: object, attribute or relation.
_LISTS = """\
people:object man woman boy girl child baby toddler lady guy person men women boys girls children people kids couple \
family skier snowboarder surfer skateboarder biker climber hiker
animals:object dog cat horse cow sheep elephant giraffe zebra bear bird puppy duck goat monkey kitten dogs cats \
horses cows elephants giraffes zebras bears birds
vehicles:object car bus train truck motorcycle bicycle bike boat airplane plane van scooter canoe kayak cars buses \
trains trucks motorcycles bicycles bikes boats sled skateboard surfboard snowboard wagon jet tractor
things:object ball frisbee umbrella bench chair table bed couch laptop computer phone book clock vase cup bottle bowl \
plate knife fork spoon pizza cake sandwich banana apple orange broccoli carrot donut toilet sink refrigerator oven \
microwave keyboard mouse television tv backpack purse suitcase kite bat racket glove helmet stick toy rope hat guitar \
camera sign flag tree rock statue fence pole hydrant lamp mirror pillow blanket basket box bag flower flowers balloon \
trash ladder tent swing slide fountain window door desk cabinet shelf stove teddy candle wine beer coffee salad soup \
bread cheese meat rice
places:object beach street field park kitchen bathroom bedroom pool lake river ocean forest mountain hill road \
sidewalk yard desert snow grass sand water city room restaurant store station court track garden bridge cliff \
pond playground stage trail parking airport stadium
clothes:object shirt jacket dress hat coat sweater suit shorts pants jeans skirt helmet cap vest scarf glasses \
sunglasses uniform swimsuit hoodie boots shoes gloves tie costume
colours:attribute red blue green yellow black white brown orange pink purple gray grey tan golden silver
looks:attribute large small big little tall short long young old wooden metal plastic stone glass brick wet dry open \
closed empty full striped plain bright dark clean dirty round square shiny colorful sandy snowy grassy rocky muddy \
paved crowded fluffy bald bearded smiling crying happy sad sleepy broken new ripe hot cold
numbers:attribute one two three four five six several
doing:relation running sitting standing walking jumping playing riding sleeping eating swimming climbing holding \
carrying throwing catching chasing flying skiing surfing skateboarding lying laying leaning dancing reading drinking \
talking kicking pushing pulling driving looking smiling crawling fishing cooking cutting digging grazing kneeling \
rolling posing
does:relation runs sits stands walks jumps plays rides sleeps eats swims climbs holds carries throws catches chases \
flies leans dances reads drinks talks kicks pushes pulls drives looks smiles leaps
where:relation on under above below beside behind near inside outside over through across around along into against \
between atop
"""
_ROWS = [line.split() for line in _LISTS.splitlines()]
CLASSES = {head.partition(":")[0]: tuple(words) for head, *words in _ROWS}
KINDS = dict(head.split(":") for head, *_ in _ROWS)
# A word of two classes counts for the first.
CLASS_OF = {word: name for name in reversed(CLASSES) for word in CLASSES[name]}

# Whatever stands or moves somewhere can be replaced by anything else that does.
MOVABLE = ("animals", "vehicles", "things")
