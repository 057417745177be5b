//! The mutants of one file: small changes of its functions, and the text that contains all of them.
//!
//! It changes:
//!
//! - comparisons, `&&` and `||`, arithmetic, and `!`,
//! - the conditions of `if` and `while`, and the guards of matches: always true or always false,
//! - the arms of a match that ends with `_`: left out,
//! - calls and assignments that are statements: left out,
//! - functions: they return a fixed value of their type at once.
//!
//! It never changes what the compiler evaluates (constants, statics, `const fn`, lengths of arrays), patterns, types,
//! the arguments of macros, `Debug`, and what is compiled for tests alone.
//!
//! Each change is a branch beside the original, as in `(if on(7) { (a) <= (b) } else { a < b })`. So a file is
//! changed by insertions alone, each on one line: line numbers stay what they are.

mod values;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use proc_macro2::TokenStream;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, Pat, Signature, Stmt, UnOp};

use crate::insertions::{Branch, Insertion};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// A name that stays the same while its function does: without a line.
    pub(crate) name: String,
    pub(crate) line: usize,
}

/// The mutants of a file, and what they insert.
#[derive(Debug)]
pub(crate) struct Derived {
    pub(crate) mutants: Vec<Mutant>,
    pub(crate) insertions: Vec<Insertion>,
}

/// Derives the mutants of a file, except those with these names. The first has the number `first`.
pub(crate) fn derive(
    file: &str,
    text: &str,
    first: usize,
    refused: &BTreeSet<String>,
) -> Result<Derived, String> {
    let syntax = syn::parse_file(text).map_err(|error| format!("{file}: {error}"))?;
    let mut deriver = Deriver {
        file,
        text,
        first,
        refused,
        place: Vec::new(),
        seen: HashMap::new(),
        unset: BTreeSet::new(),
        mutants: Vec::new(),
        insertions: Vec::new(),
    };
    deriver.visit_file(&syntax);
    Ok(Derived { mutants: deriver.mutants, insertions: deriver.insertions })
}

/// Returns `true` if these attributes have the compiler leave out what they belong to, except for tests and for the
/// simulation.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let words = match &attribute.meta {
            syn::Meta::List(list) => list.tokens.to_string(),
            _ => String::new(),
        };
        let is_condition = attribute.path().is_ident("cfg") && !words.starts_with("not");
        let mut words = words.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
        attribute.path().is_ident("test")
            || (is_condition && words.any(|word| ["test", "leasehold_sim"].contains(&word)))
    })
}

struct Deriver<'a> {
    file: &'a str,
    text: &'a str,
    first: usize,
    refused: &'a BTreeSet<String>,
    /// The types and functions around what is visited.
    place: Vec<String>,
    /// The number of times that each name was given.
    seen: HashMap<String, usize>,
    /// Variables that are declared without a value. The compiler refuses to leave out what sets them.
    unset: BTreeSet<String>,
    mutants: Vec<Mutant>,
    insertions: Vec<Insertion>,
}

impl Deriver<'_> {
    /// Adds a mutant, and returns its number, unless it is refused.
    fn add(&mut self, what: &str, code: &Range<usize>) -> Option<usize> {
        let words = self.text[code.clone()].split_whitespace().collect::<Vec<_>>().join(" ");
        let shown: String = words.chars().take(SHOWN).collect();
        let dots = if shown.len() < words.len() { "..." } else { "" };
        let mut name = format!("{}: {}: {what}: {shown}{dots}", self.file, self.place.join("::"));
        let count = self.seen.entry(name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            name += &format!(" #{count}");
        }
        if self.refused.contains(&name) {
            return None;
        }
        let line = self.text[..code.start].matches('\n').count() + 1;
        self.mutants.push(Mutant { name, line });
        Some(self.first + self.mutants.len() - 1)
    }

    /// Returns a part of the file on one line, without its comments.
    fn line(&self, part: Range<usize>) -> String {
        let text = &self.text[part];
        text.parse::<TokenStream>().map_or_else(|_| text.to_owned(), |tokens| tokens.to_string())
    }

    /// Puts an expression into a branch beside its variants, and visits it with `visit`.
    fn branch(&mut self, code: Range<usize>, variants: &[(&str, String)], visit: impl FnOnce(&mut Self)) {
        let mut branch = Branch::begin("(");
        for (what, variant) in variants {
            if let Some(number) = self.add(what, &code) {
                branch.push(number, &format!("if {SWITCH}({number}) {{ "), variant, " } else ");
            }
        }
        let has_variants = !branch.is_empty();
        if has_variants {
            self.insertions.push(Insertion::open(code.start, branch.end("{ ")));
        }
        visit(self);
        if has_variants {
            self.insertions.push(Insertion::close(code.end, " })"));
        }
    }

    /// Visits a condition, which may be always true or always false instead.
    fn condition(&mut self, condition: &Expr, variants: &[(&str, String)]) {
        let is_plain = match condition {
            // They have mutants of their own, or are expanded to something else.
            Expr::Binary(_) | Expr::Let(_) | Expr::Lit(_) | Expr::Macro(_) => false,
            Expr::Unary(unary) => !matches!(unary.op, UnOp::Not(_)),
            _ => true,
        };
        if is_plain {
            self.branch(range(condition), variants, |it| it.visit_expr(condition));
        } else {
            self.visit_expr(condition);
        }
    }

    /// Visits a function, which may return a fixed value instead.
    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if is_for_tests(attributes) || signature.constness.is_some() {
            return;
        }
        self.place.push(signature.ident.to_string());
        let outer = std::mem::take(&mut self.unset);
        if !block.stmts.is_empty() {
            let body = block.brace_token.span.open().byte_range().end
                ..block.brace_token.span.close().byte_range().start;
            let mut branch = Branch::begin("");
            for value in values::of(&signature.output) {
                if self.line(body.clone()).replace(' ', "") == value.replace(' ', "") {
                    continue;
                }
                let what =
                    if *value == "()" { "does nothing".to_owned() } else { format!("returns {value}") };
                if let Some(number) = self.add(&what, &range(&signature.ident)) {
                    branch.push(number, &format!(" if {SWITCH}({number}) {{ return "), value, "; }");
                }
            }
            if !branch.is_empty() {
                self.insertions.push(Insertion::point(body.start, branch.end("")));
            }
            self.visit_block(block);
        }
        self.unset = outer;
        self.place.pop();
    }
}

impl<'ast> Visit<'ast> for Deriver<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if is_for_tests(&item.attrs) || name.is_some_and(|name| name.ident == "Debug") {
            return;
        }
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.place.push(name.unwrap_or_else(|| self.text[range(&item.self_ty)].to_owned()));
        item.items.iter().for_each(|item| self.visit_impl_item(item));
        self.place.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if !is_for_tests(&item.attrs) {
            self.place.push(item.ident.to_string());
            item.items.iter().for_each(|item| self.visit_trait_item(item));
            self.place.pop();
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }

    // The compiler evaluates them, or they are not expressions.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_variant(&mut self, _: &'ast syn::Variant) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_path(&mut self, _: &'ast syn::Path) {}
    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'ast syn::AngleBracketedGenericArguments) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if local.init.is_none() {
            let pattern = match &local.pat {
                Pat::Type(typed) => &typed.pat,
                pattern => pattern,
            };
            self.unset.insert(self.text[range(pattern)].trim_start_matches("mut ").to_owned());
        }
        visit::visit_local(self, local);
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let Stmt::Expr(expression, Some(end)) = statement else { return visit::visit_stmt(self, statement) };
        let code = range(expression);
        let may_go = match expression {
            // What it drops ends with its block anyway.
            Expr::Call(call) => !matches!(&self.text[range(&call.func)], "drop" | "mem::drop"),
            // It only says that a value is not used.
            Expr::Assign(syn::ExprAssign { left, right, .. }) if matches!(**left, Expr::Infer(_)) => {
                !matches!(**right, Expr::Path(_))
            }
            Expr::Assign(assignment) => !self.unset.contains(&self.text[range(&assignment.left)]),
            Expr::Binary(binary) => assigns(&binary.op),
            Expr::Await(_) | Expr::MethodCall(_) | Expr::Try(_) => true,
            _ => false,
        };
        let number = may_go.then(|| self.add("left out", &code)).flatten();
        if let Some(number) = number {
            let mut branch = Branch::begin("");
            branch.push(number, &format!("if !{SWITCH}({number}) {{ "), "", "");
            self.insertions.push(Insertion::open(code.start, branch.end("")));
        }
        visit::visit_stmt(self, statement);
        if number.is_some() {
            self.insertions.push(Insertion::close(range(end).end, " }"));
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let variants = match has_let(&binary.left) || has_let(&binary.right) || !binary.attrs.is_empty() {
            true => &[][..],
            false => others(&binary.op),
        };
        let (left, right) = (self.line(range(&binary.left)), self.line(range(&binary.right)));
        let own = &self.text[range(&binary.op)];
        let variants: Vec<_> = variants
            .iter()
            .map(|other| (format!("{own} becomes {other}"), format!("({left}) {other} ({right})")))
            .collect();
        let variants: Vec<_> = variants.iter().map(|(what, code)| (&**what, code.clone())).collect();
        self.branch(range(binary), &variants, |it| visit::visit_expr_binary(it, binary));
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let variant = ("! left out", self.line(range(&unary.expr)));
        let is_not = matches!(unary.op, UnOp::Not(_)) && unary.attrs.is_empty() && !is_planted(&unary.expr);
        let variants = if is_not { std::slice::from_ref(&variant) } else { &[] };
        self.branch(range(unary), variants, |it| visit::visit_expr_unary(it, unary));
    }

    fn visit_expr_if(&mut self, branch: &'ast syn::ExprIf) {
        self.condition(&branch.cond, &[always(true), always(false)]);
        self.visit_block(&branch.then_branch);
        if let Some((_, otherwise)) = &branch.else_branch {
            self.visit_expr(otherwise);
        }
    }

    fn visit_expr_while(&mut self, repeated: &'ast syn::ExprWhile) {
        // One that is always true hangs.
        self.condition(&repeated.cond, &[always(false)]);
        self.visit_block(&repeated.body);
    }

    fn visit_expr_match(&mut self, choice: &'ast syn::ExprMatch) {
        self.visit_expr(&choice.expr);
        let is_complete = choice
            .arms
            .last()
            .is_some_and(|last| last.guard.is_none() && last.attrs.is_empty() && matches_all(&last.pat));
        for (index, arm) in choice.arms.iter().enumerate().filter(|(_, arm)| !is_for_tests(&arm.attrs)) {
            if let Some((_, guard)) = &arm.guard {
                self.condition(guard, &[always(true), always(false)]);
            } else if is_complete && index + 1 < choice.arms.len() {
                let code = range(&arm.pat);
                if let Some(number) = self.add("arm left out", &code) {
                    let mut branch = Branch::begin("");
                    branch.push(number, &format!(" if !{SWITCH}({number})"), "", "");
                    self.insertions.push(Insertion::point(code.end, branch.end("")));
                }
            }
            self.visit_expr(&arm.body);
        }
    }
}

/// Returns the part of the file that has something.
fn range(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

fn always(value: bool) -> (&'static str, String) {
    (if value { "always true" } else { "always false" }, value.to_string())
}

/// Returns `true` if a condition binds names, so that it can stand nowhere but there.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Returns `true` for a defect that the simulation of the engine plants: it has to find each of them.
fn is_planted(expression: &Expr) -> bool {
    matches!(expression, Expr::Macro(call) if call.mac.path.is_ident("mutant"))
}

/// Returns `true` for `_` and for a variable. What begins with a capital is a variant or a constant.
fn matches_all(pattern: &Pat) -> bool {
    match pattern {
        Pat::Wild(_) => true,
        Pat::Ident(name) => name.subpat.is_none() && name.ident.to_string().starts_with(char::is_lowercase),
        _ => false,
    }
}

/// Returns the operators that are tried in the place of this one.
fn others(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["<=", ">"],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<"],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) | BinOp::Rem(_) => &["/"],
        BinOp::Div(_) => &["*"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) | BinOp::BitXor(_) => &["&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        _ => &[],
    }
}

/// Returns `true` for `+=` and the like.
fn assigns(operator: &BinOp) -> bool {
    !matches!(
        operator,
        BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_)
    ) && others(operator).is_empty()
}

/// The path of the function that says whether a mutant is on.
const SWITCH: &str = "crate::leasehold_mutants::on";
/// The number of characters of the code that a name shows.
const SHOWN: usize = 60;

#[cfg(test)]
mod tests;
