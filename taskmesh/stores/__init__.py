"""The store in which a hub keeps outcomes for its successor: `ports.OutcomeStore` over Redis."""
