"""Pure decisions: from observations to actions. Imports `model` alone, and nothing that acts."""
