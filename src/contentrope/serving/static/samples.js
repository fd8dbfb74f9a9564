// Example texts, made up for this page: small enough to be read at a glance.

export const SAMPLES = [
  ["Lighthouse", "The lighthouse at Cape Merrow was built in 1874. Its keeper is Ines Calder, who lives there with her dog Biscuit."],
  ["Bakery", "Old Mill Bakery opens at six in the morning. The baker is Tomas Reyes, and a walnut loaf costs four euros."],
  ["Library", "The town library is closed on Mondays. The librarian, Ruth Okafor, reads stories to children on Saturday."],
  ["Garden", "In the botanical garden the night cactus opens once a year, in July. Visitors come at midnight with lanterns."],
  ["Ferry", "The ferry Halcyon crosses the bay three times a day. The crossing takes forty minutes, and bicycles travel free."],
  ["Clock", "The clock on the town hall runs seven minutes late. Nobody repairs it, because the mayor likes to sleep longer."],
];

export const QUESTIONS = ["Who is the keeper of the lighthouse?", "How much does a walnut loaf cost?", "When is the library closed?"];
