"""The pure half: what to do, given what was observed. Imports data, nothing that acts."""
