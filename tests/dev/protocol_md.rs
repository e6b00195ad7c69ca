//! Writes `docs/reference/protocol.md` from the compiled protocol and its comments.
//!
//! `cargo run -p vramd-tests --bin protocol-md` writes the page; with `--check` it only compares and exits 1 on a difference.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    process::ExitCode,
};

use dev_kit::Page;
use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

const PACKAGE: &str = "vramd.v1";

const HEAD: &str = "\
# Protocol

<!-- Generated from proto/vramd/v1/*.proto by `make protocol-md`. Do not edit. -->

For authors of clients in other languages: every service, message and enum of the package `vramd.v1`. Clients call
`vramd.sock`, operators `admin.sock`; the frames of `channel.sock` are messages too. Errors are in
[the page of errors](errors.md).
";

/// Field numbers of the descriptors' own messages, which the path of a comment is made of.
mod number {
    pub(super) const FILE_MESSAGE: i32 = 4;
    pub(super) const FILE_ENUM: i32 = 5;
    pub(super) const FILE_SERVICE: i32 = 6;
    pub(super) const FILE_SYNTAX: i32 = 12;
    pub(super) const MESSAGE_FIELD: i32 = 2;
    pub(super) const MESSAGE_NESTED: i32 = 3;
    pub(super) const MESSAGE_ENUM: i32 = 4;
    pub(super) const ENUM_VALUE: i32 = 2;
    pub(super) const SERVICE_METHOD: i32 = 2;
}

fn main() -> anyhow::Result<ExitCode> {
    page().write_or_check()
}

fn page() -> Page {
    Page { name: "reference/protocol.md", tool: "protocol-md", text: text() }
}

fn files() -> Vec<FileDescriptorProto> {
    let all = FileDescriptorSet::decode(vramd_proto::DESCRIPTORS).expect("the build wrote descriptors");
    let mut files: Vec<_> = all.file.into_iter().filter(|file| file.package() == PACKAGE).collect();
    files.sort_by(|left, right| left.name().cmp(right.name()));
    files
}

fn text() -> String {
    let mut page = String::from(HEAD);
    for file in files() {
        FilePage::new(&file).write(&mut page).expect("a String takes all that is written");
    }
    page
}

/// One `.proto` file with its comments by path.
struct FilePage<'a> {
    file: &'a FileDescriptorProto,
    comments: BTreeMap<&'a [i32], String>,
}

impl<'a> FilePage<'a> {
    fn new(file: &'a FileDescriptorProto) -> Self {
        let locations = file.source_code_info.iter().flat_map(|info| &info.location);
        let comments = locations.filter_map(|location| {
            let detached = location.leading_detached_comments.first().map(String::as_str);
            let is_file = location.path == [number::FILE_SYNTAX];
            let comment = location.leading_comments.as_deref().or_else(|| detached.filter(|_| is_file))?;
            Some((location.path.as_slice(), one_line(comment)))
        });
        Self { file, comments: comments.collect() }
    }

    fn comment(&self, path: &[i32]) -> &str {
        self.comments.get(path).map_or("", String::as_str)
    }

    fn write(&self, page: &mut String) -> fmt::Result {
        writeln!(page, "\n## `{}`", self.file.name())?;
        let about = self.comment(&[number::FILE_SYNTAX]);
        if !about.is_empty() {
            writeln!(page, "\n{about}")?;
        }
        for (index, service) in (0..).zip(&self.file.service) {
            self.service(page, &[number::FILE_SERVICE, index], service)?;
        }
        for (index, message) in (0..).zip(&self.file.message_type) {
            self.message(page, &[number::FILE_MESSAGE, index], "", message)?;
        }
        for (index, of) in (0..).zip(&self.file.enum_type) {
            self.enumeration(page, &[number::FILE_ENUM, index], "", of)?;
        }
        Ok(())
    }

    fn heading(&self, page: &mut String, kind: &str, name: &str, path: &[i32]) -> fmt::Result {
        writeln!(page, "\n### {kind} `{name}`\n")?;
        let comment = self.comment(path);
        if comment.is_empty() { Ok(()) } else { writeln!(page, "{comment}\n") }
    }

    fn service(&self, page: &mut String, path: &[i32], service: &ServiceDescriptorProto) -> fmt::Result {
        self.heading(page, "service", service.name(), path)?;
        writeln!(page, "| Method | Request | Response | Meaning |\n|---|---|---|---|")?;
        for (index, method) in (0..).zip(&service.method) {
            let stream = if method.server_streaming() { "stream of " } else { "" };
            let (request, response) = (local(method.input_type()), local(method.output_type()));
            let meaning = self.comment(&join(path, &[number::SERVICE_METHOD, index]));
            writeln!(page, "| `{}` | `{request}` | {stream}`{response}` | {meaning} |", method.name())?;
        }
        Ok(())
    }

    fn message(
        &self,
        page: &mut String,
        path: &[i32],
        outer: &str,
        message: &DescriptorProto,
    ) -> fmt::Result {
        if message.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry) {
            return Ok(());
        }
        let name = format!("{outer}{}", message.name());
        self.heading(page, "message", &name, path)?;
        if message.field.is_empty() {
            writeln!(page, "It has no fields.")?;
        } else {
            writeln!(page, "| Field | Number | Type | Meaning |\n|---|---|---|---|")?;
        }
        for (index, field) in (0..).zip(&message.field) {
            let meaning = self.comment(&join(path, &[number::MESSAGE_FIELD, index]));
            let kind = type_of(message, field);
            writeln!(page, "| `{}` | {} | {kind} | {meaning} |", field.name(), field.number())?;
        }
        let inside = format!("{name}.");
        for (index, nested) in (0..).zip(&message.nested_type) {
            self.message(page, &join(path, &[number::MESSAGE_NESTED, index]), &inside, nested)?;
        }
        for (index, of) in (0..).zip(&message.enum_type) {
            self.enumeration(page, &join(path, &[number::MESSAGE_ENUM, index]), &inside, of)?;
        }
        Ok(())
    }

    fn enumeration(
        &self,
        page: &mut String,
        path: &[i32],
        outer: &str,
        of: &EnumDescriptorProto,
    ) -> fmt::Result {
        self.heading(page, "enum", &format!("{outer}{}", of.name()), path)?;
        writeln!(page, "| Value | Number | Meaning |\n|---|---|---|")?;
        for (index, value) in (0..).zip(&of.value) {
            let meaning = self.comment(&join(path, &[number::ENUM_VALUE, index]));
            writeln!(page, "| `{}` | {} | {meaning} |", value.name(), value.number())?;
        }
        Ok(())
    }
}

fn join(path: &[i32], rest: &[i32]) -> Vec<i32> {
    [path, rest].concat()
}

/// A comment as a table cell can show it.
fn one_line(comment: &str) -> String {
    comment.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// The name of a message or enum without the package.
fn local(name: &str) -> &str {
    let name = name.trim_start_matches('.');
    name.strip_prefix(PACKAGE).map_or(name, |rest| rest.trim_start_matches('.'))
}

fn type_of(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|nested| {
        field.type_name().ends_with(&format!(".{}", nested.name()))
            && nested.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry)
    });
    if let Some([key, value]) = entry.map(|entry| entry.field.as_slice()) {
        return format!("map of `{}` to `{}`", scalar(key), scalar(value));
    }
    let oneof = field.oneof_index.and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
    let before = match (field.label(), oneof) {
        (Label::Repeated, _) => "repeated ".to_owned(),
        (_, Some(_)) if field.proto3_optional() => "optional ".to_owned(),
        (_, Some(oneof)) => format!("one of `{}`: ", oneof.name()),
        _ => String::new(),
    };
    format!("{before}`{}`", scalar(field))
}

fn scalar(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => local(field.type_name()).to_owned(),
        other => other.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_page_is_current() {
        page().assert_current();
    }

    #[test]
    fn page_has_every_method_and_message() {
        let (page, files) = (text(), files());
        assert!(!files.is_empty());
        for file in files {
            for method in file.service.iter().flat_map(|service| &service.method) {
                assert!(page.contains(&format!("| `{}` |", method.name())), "{}", method.name());
            }
            for message in &file.message_type {
                assert!(page.contains(&format!("### message `{}`", message.name())), "{}", message.name());
            }
        }
    }

    /// A comment that is lost on the way leaves an empty cell; the protocol documents each method and enum value it has.
    #[test]
    fn every_method_says_what_it_does() {
        for file in files() {
            let comments = FilePage::new(&file);
            for (service, of) in (0..).zip(&file.service) {
                for (method, name) in (0..).zip(&of.method) {
                    let path = [number::FILE_SERVICE, service, number::SERVICE_METHOD, method];
                    assert!(!comments.comment(&path).is_empty(), "{}", name.name());
                }
            }
        }
    }
}
