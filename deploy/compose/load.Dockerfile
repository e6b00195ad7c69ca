# The load of the stack: the example `load` of the Rust SDK, built from the repository's root.
FROM rust:1.88-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p vramd-client --example load

FROM debian:bookworm-slim
COPY --from=build /src/target/release/examples/load /usr/bin/load
USER 65532:65532
ENTRYPOINT ["/usr/bin/load"]
