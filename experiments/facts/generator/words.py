"""The words, and no torch: roles by domain, and the sentences that ask for a fact."""

DOMAINS = {
    "family": ("great-grandson", "grandson", "son", "father", "grandfather", "great-grandfather"),
    "work": ("intern", "assistant", "engineer", "manager", "director", "president"),
    "military": ("private", "corporal", "sergeant", "lieutenant", "captain", "general"),
    "school": ("pupil", "prefect", "tutor", "teacher", "principal", "inspector"),
    "church": ("acolyte", "deacon", "priest", "bishop", "archbishop", "cardinal"),
}
"""Roles from the lowest to the highest."""
ROLES = tuple(role for roles in DOMAINS.values() for role in roles)

# The given entity and its role come before the targets, and each target's role before its name: a reader that has come
# to a target knows all it needs. Every slot occurs once in every template.
SLOTS = ("given", "given_role", "first", "first_role", "second", "second_role")
TARGETS = ("first", "second")
PAIRS = (
    "if {given} is the {given_role}, the {first_role} is {first}.",
    "with {given} as the {given_role}, the {first_role} is {first}.",
    "when the {given_role} is {given}, the {first_role} is {first}.",
    "{given} is the {given_role} and the {first_role} is {first}.",
    "the {given_role} is {given}, so the {first_role} must be {first}.",
    "since {given} is the {given_role}, the {first_role} is {first}.",
    "given that {given} is the {given_role}, the {first_role} is {first}.",
    "for {given} the {given_role}, the {first_role} is {first}.",
    "as the {given_role}, {given} has the {first_role} {first}.",
    "the {given_role} {given} knows the {first_role} {first}.",
    "{given}, the {given_role}, belongs with the {first_role} {first}.",
    "next to {given} the {given_role} stands the {first_role} {first}.",
)
TRIPLES = (
    "if {given} is the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "with {given} as the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "when the {given_role} is {given}, the {first_role} is {first} and the {second_role} is {second}.",
    "{given} is the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "the {given_role} is {given}, so the {first_role} must be {first} and the {second_role} {second}.",
    "since {given} is the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "given that {given} is the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "for {given} the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "as the {given_role}, {given} has the {first_role} {first} and the {second_role} {second}.",
    "the {given_role} {given} knows the {first_role} {first} and the {second_role} {second}.",
    "{given}, the {given_role}, belongs with the {first_role} {first} and the {second_role} {second}.",
    "next to {given} the {given_role} stand the {first_role} {first} and the {second_role} {second}.",
)
TEMPLATES = {2: PAIRS, 3: TRIPLES}
"""By the number of entities."""
