//! The imports between the files of a crate, read from its sources.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// Sources of a crate by their path below `src`.
pub(super) type Sources = BTreeMap<String, String>;

/// Segments of a path, `a::b` as `["a", "b"]`.
type Segments = Vec<String>;

/// Most names that one name leads through; a circle of globs has no end.
const RE_EXPORTS: usize = 12;

/// A module, as far as names lead into or out of it.
#[derive(Default)]
struct Module {
    file: String,
    /// Names of the items that are declared in it.
    items: BTreeSet<String>,
    /// Paths that `use` brings into scope, by their name in the module.
    names: BTreeMap<String, Segments>,
    /// Modules of which `use` brings every name into scope.
    globs: Vec<Segments>,
    /// Paths in code and in `use`.
    paths: BTreeSet<Segments>,
}

/// Imports between the files of a crate.
pub(super) struct Imports {
    modules: BTreeMap<Segments, Module>,
    /// The item by which one file uses another, for each pair of files.
    arrows: BTreeMap<(String, String), String>,
}

impl Imports {
    /// Reads the sources of a crate, from `lib.rs` on. Panics if one is not Rust.
    pub(super) fn of(sources: &Sources) -> Self {
        let mut reader = Reader { sources, modules: BTreeMap::new(), at: Vec::new() };
        reader.read_file("lib.rs", "");
        let mut imports = Self { modules: reader.modules, arrows: BTreeMap::new() };
        for (at, module) in &imports.modules {
            for path in &module.paths {
                let Some((used, item)) =
                    imports.absolute(at, path, 0).and_then(|path| imports.definition(&path, 0))
                else {
                    continue;
                };
                let file = &imports.modules[&used].file;
                if *file != module.file {
                    imports.arrows.insert((module.file.clone(), file.clone()), item);
                }
            }
        }
        imports
    }

    /// Returns the top-level modules: files and folders of `src`.
    pub(super) fn top_level_modules(&self) -> BTreeSet<String> {
        self.modules.keys().filter_map(|path| path.first().cloned()).collect()
    }

    /// Returns the top-level module that a file belongs to; `lib` is that of `lib.rs`.
    pub(super) fn top_level_module<'a>(&self, file: &'a str) -> &'a str {
        file.split(['/', '.']).next().expect("a path has a part")
    }

    /// Returns the imports between files of different top-level modules, as user, used file and item. `lib.rs` may use all.
    pub(super) fn between_top_level_modules(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let all =
            self.arrows.iter().map(|((user, used), item)| (user.as_str(), used.as_str(), item.as_str()));
        all.filter(|(user, used, _)| {
            *user != "lib.rs" && self.top_level_module(user) != self.top_level_module(used)
        })
    }

    /// Returns the groups of files that import each other in a circle. Imports between a module and its submodules do not count.
    pub(super) fn circles(&self) -> Vec<BTreeSet<&str>> {
        let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (user, used) in
            self.arrows.keys().filter(|(user, used)| !is_submodule(user, used) && !is_submodule(used, user))
        {
            users.entry(user).or_default().insert(used);
        }
        let reached = |from: &str| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(file) = open.pop() {
                for used in users.get(file).into_iter().flatten() {
                    if reached.insert(*used) {
                        open.push(used);
                    }
                }
            }
            reached
        };
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            users.keys().map(|file| (*file, reached(file))).collect();
        let circle = |file: &str| -> BTreeSet<&str> {
            reached[file]
                .iter()
                .copied()
                .filter(|other| reached.get(other).is_some_and(|back| back.contains(file)))
                .collect()
        };
        reached
            .keys()
            .map(|file| circle(file))
            .filter(|circle| circle.len() > 1)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Describes the imports between some files.
    pub(super) fn within(&self, files: &BTreeSet<&str>) -> Vec<String> {
        let inside =
            |(user, used): &(String, String)| files.contains(user.as_str()) && files.contains(used.as_str());
        let all = self.arrows.iter().filter(|(pair, _)| inside(pair));
        all.map(|((user, used), item)| format!("{user} uses `{item}` of {used}")).collect()
    }

    /// Returns a path of a module from the root of the crate; `None` if it leads to another crate.
    fn absolute(&self, at: &Segments, path: &[String], depth: usize) -> Option<Segments> {
        if depth > RE_EXPORTS {
            return None;
        }
        let first = path.first()?;
        match first.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" | "super" => {
                let up = path.iter().take_while(|segment| *segment == "super" || *segment == "self");
                let (skipped, levels) =
                    (up.clone().count(), up.filter(|segment| *segment == "super").count());
                let base = at.get(..at.len().checked_sub(levels)?)?;
                Some([base, &path[skipped..]].concat())
            }
            _ => {
                let module = &self.modules[at];
                let inside = [&at[..], &path[..1]].concat();
                if module.items.contains(first) || self.modules.contains_key(&inside) {
                    return Some([&at[..], path].concat());
                }
                match module.names.get(first) {
                    Some(named) if named[..1] != path[..1] => {
                        Some([self.absolute(at, named, depth + 1)?, path[1..].to_vec()].concat())
                    }
                    _ => module.globs.iter().find_map(|glob| {
                        let glob = self.absolute(at, glob, depth + 1)?;
                        let path = [glob, path.to_vec()].concat();
                        self.definition(&path, depth + 1).map(|_| path)
                    }),
                }
            }
        }
    }

    /// Returns the module that defines the item at a path from the root of the crate, and the item.
    fn definition(&self, path: &[String], depth: usize) -> Option<(Segments, String)> {
        if depth > RE_EXPORTS {
            return None;
        }
        let is_module = |length: &usize| self.modules.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_module)?;
        let (at, rest) = path.split_at(length);
        let module = &self.modules[at];
        let Some(item) = rest.first() else {
            return Some((at.to_vec(), at.last().cloned().unwrap_or_default()));
        };
        if module.items.contains(item) {
            return Some((at.to_vec(), item.clone()));
        }
        let named = module.names.get(item).and_then(|named| self.absolute(&at.to_vec(), named, depth + 1));
        if let Some(named) = named {
            return self.definition(&[&named[..], &rest[1..]].concat(), depth + 1);
        }
        module.globs.iter().find_map(|glob| {
            let glob = self.absolute(&at.to_vec(), glob, depth + 1)?;
            self.definition(&[&glob[..], rest].concat(), depth + 1)
        })
    }
}

/// Returns `true` if a file is that of a submodule of another's, at any depth.
fn is_submodule(file: &str, of: &str) -> bool {
    let folder =
        of.strip_suffix("mod.rs").map_or_else(|| format!("{}/", of.trim_end_matches(".rs")), str::to_owned);
    of == "lib.rs" || file.starts_with(&folder)
}

/// Reads modules from their files.
struct Reader<'a> {
    sources: &'a Sources,
    modules: BTreeMap<Segments, Module>,
    /// The module that is being read.
    at: Segments,
}

impl Reader<'_> {
    /// Reads the file of the module `self.at`, whose submodules lie in `folder`.
    fn read_file(&mut self, file: &str, folder: &str) {
        let text = &self.sources[file];
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.modules.insert(self.at.clone(), Module { file: file.to_owned(), ..Module::default() });
        self.read_items(&parsed.items, folder);
    }

    fn read_items(&mut self, items: &[syn::Item], folder: &str) {
        for item in items {
            let name = item_name(item);
            self.module().items.extend(name);
            match item {
                syn::Item::Mod(inner) if !is_test(&inner.attrs) => self.read_module(inner, folder),
                syn::Item::Mod(_) => {}
                other => self.visit_item(other),
            }
        }
    }

    fn read_module(&mut self, inner: &syn::ItemMod, folder: &str) {
        let name = inner.ident.to_string();
        self.module().items.remove(&name);
        self.at.push(name.clone());
        match &inner.content {
            Some((_, items)) => {
                let file = self.modules[&self.at[..self.at.len() - 1]].file.clone();
                self.modules.insert(self.at.clone(), Module { file, ..Module::default() });
                self.read_items(items, &format!("{folder}{name}/"));
            }
            None => {
                let flat = format!("{folder}{name}.rs");
                let file =
                    if self.sources.contains_key(&flat) { flat } else { format!("{folder}{name}/mod.rs") };
                self.read_file(&file, &format!("{folder}{name}/"));
            }
        }
        self.at.pop();
    }

    fn module(&mut self) -> &mut Module {
        self.modules.get_mut(&self.at).expect("the module that is being read")
    }

    fn read_use(&mut self, tree: &syn::UseTree, prefix: &[String]) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        // `use a::{self, b}` names `a`.
        let named = |path: Segments| {
            if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                prefix.to_vec()
            } else {
                path
            }
        };
        match tree {
            syn::UseTree::Path(path) => self.read_use(&path.tree, &with(&path.ident)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.read_use(tree, prefix)),
            syn::UseTree::Glob(_) => {
                self.module().globs.push(prefix.to_vec());
                if prefix.iter().any(|segment| !["crate", "self", "super"].contains(&segment.as_str())) {
                    self.module().paths.insert(prefix.to_vec());
                }
            }
            syn::UseTree::Name(name) => {
                let path = named(with(&name.ident));
                let last = path.last().expect("a path has a segment").clone();
                self.module().paths.insert(path.clone());
                self.module().names.insert(last, path);
            }
            syn::UseTree::Rename(rename) => {
                let path = named(with(&rename.ident));
                self.module().paths.insert(path.clone());
                self.module().names.insert(rename.rename.to_string(), path);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.read_use(&item.tree, &[]);
    }

    /// Skips `pub(crate)` and `pub(in path)`.
    fn visit_visibility(&mut self, _visibility: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.module().paths.insert(segments);
        visit::visit_path(self, path);
    }

    /// Takes every path of identifiers in the arguments of a macro.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.read_tokens(call.tokens.clone());
    }
}

impl Reader<'_> {
    fn read_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons): (Segments, usize) = (Vec::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if colons == 2 || path.is_empty() => path.push(ident.to_string()),
                TokenTree::Ident(ident) => {
                    let ended = std::mem::replace(&mut path, vec![ident.to_string()]);
                    self.module().paths.insert(ended);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() && colons < 2 => {
                    colons += 1;
                    continue;
                }
                other => {
                    self.module()
                        .paths
                        .extend(Some(std::mem::take(&mut path)).filter(|path| !path.is_empty()));
                    if let TokenTree::Group(group) = other {
                        self.read_tokens(group.stream());
                    }
                }
            }
            colons = 0;
        }
        self.module().paths.extend(Some(path).filter(|path| !path.is_empty()));
    }
}

/// Returns `true` if an attribute leaves an item out of everything but tests.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let condition: String = list.tokens.to_string().split_whitespace().collect();
        list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all(test,"))
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the name that an item declares.
fn item_name(item: &syn::Item) -> Option<String> {
    let ident = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Mod(item) => &item.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
