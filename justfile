# See it work: a relay on a temporary SQLite file with a demonstration event every second.
dev:
    cargo run -- dev

# Every check and every test; `just test --long` for the long runs too.
test *args:
    scripts/test {{ args }}

# What CI refuses before it tests.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    scripts/check-docs

fmt:
    cargo fmt --all
