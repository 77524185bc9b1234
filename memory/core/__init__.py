"""The pure heart: values, contracts, merge, records, tokens and errors. No I/O, no clock, no database."""
