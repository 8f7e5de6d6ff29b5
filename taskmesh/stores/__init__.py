"""Where a hub keeps outcomes for the hub that comes after it: `ports.OutcomeStore` over Redis."""
