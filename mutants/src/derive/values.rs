//! The values that a function may return without any work.

use syn::{GenericArgument, PathArguments, PathSegment, ReturnType, Type};

/// Returns the values for a type, none for types without a value that all compilers accept.
pub(super) fn of(output: &ReturnType) -> &'static [&'static str] {
    let ReturnType::Type(_, kind) = output else { return &["()"] };
    let Some(last) = last(kind) else { return if is_unit(kind) { &["()"] } else { &[] } };
    match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "Option" => &["None"],
        "Vec" => &["Vec::new()"],
        "Duration" | "String" => &["Default::default()"],
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => &["Default::default()"],
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => &["Default::default()"],
        "Poll" if argument(last).is_some_and(is_unit) => {
            &["std::task::Poll::Ready(())", "std::task::Poll::Pending"]
        }
        "Result" => match argument(last) {
            Some(kind) if is_unit(kind) => &["Ok(())"],
            Some(kind) => match last_name(kind).as_str() {
                "bool" => &["Ok(true)", "Ok(false)"],
                "Option" => &["Ok(None)"],
                "Vec" => &["Ok(Vec::new())"],
                _ => &[],
            },
            None => &[],
        },
        _ => &[],
    }
}

fn is_unit(kind: &Type) -> bool {
    matches!(kind, Type::Tuple(tuple) if tuple.elems.is_empty())
}

/// Returns the last segment of a path, such as `Result<()>` of `io::Result<()>`.
fn last(kind: &Type) -> Option<&PathSegment> {
    match kind {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

fn last_name(kind: &Type) -> String {
    last(kind).map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// Returns the first type that a type is made with.
fn argument(segment: &PathSegment) -> Option<&Type> {
    match &segment.arguments {
        PathArguments::AngleBracketed(list) => list.args.iter().find_map(|argument| match argument {
            GenericArgument::Type(kind) => Some(kind),
            _ => None,
        }),
        _ => None,
    }
}
