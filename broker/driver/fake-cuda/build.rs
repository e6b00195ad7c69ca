//! Has the library refer to its own functions directly, as a driver does: not to those of a library that replaces them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-Bsymbolic-functions");
}
