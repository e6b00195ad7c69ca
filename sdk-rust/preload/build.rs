//! Has the library refer to its own functions directly, also if another library that the loader loads has the same.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-Bsymbolic-functions");
}
