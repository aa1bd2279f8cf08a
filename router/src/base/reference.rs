//! What tests need to compare a page of `docs/reference` with the code: the tables of the page, and the fields of a type.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor, value::Error},
};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A file below the root of the repository.
pub fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(name)
}

/// The page with another part between `<!-- begin NAME -->` and `<!-- end -->`.
pub fn with_part(page: &str, name: &str, part: &str) -> String {
    let begin = format!("<!-- begin {name} -->\n");
    let at = page.find(&begin).unwrap_or_else(|| panic!("the page has no line {begin}")) + begin.len();
    let end = page[at..].find("<!-- end -->").expect("an end of each part");
    format!("{}{part}{}", &page[..at], &page[at + end..])
}

/// Asserts that a file which is made of the code is current. With `MILLRACE_WRITE`, writes it.
pub fn assert_current(path: &Path, made: &str) {
    if std::env::var_os("MILLRACE_WRITE").is_some() {
        std::fs::write(path, made).unwrap();
        return;
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    let mut lines = made.lines().zip(there.lines());
    let differs = lines.find(|(made, there)| made != there);
    assert!(
        made == there,
        "{} differs from the code; first difference: {differs:#?}\n\
         `MILLRACE_WRITE=1 cargo test -p millrace --lib -- reference page` writes it again",
        path.display()
    );
}

/// A table of a page.
#[derive(Debug)]
pub struct Table {
    /// The heading that it stands under.
    pub heading: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

pub fn tables(page: &str) -> Vec<Table> {
    let (mut heading, mut tables, mut inside) = (String::new(), Vec::<Table>::new(), false);
    for line in page.lines() {
        if line.starts_with("##") {
            heading = line.trim_start_matches('#').trim().into();
        }
        let Some(cells) = line.strip_prefix('|') else {
            inside = false;
            continue;
        };
        let cells = cells.trim_end().trim_end_matches('|').replace("\\|", "\u{0}");
        let cells: Vec<_> = cells.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect();
        match tables.last_mut() {
            _ if line.starts_with("|---") => (),
            Some(table) if inside => table.rows.push(cells),
            _ => tables.push(Table { heading: heading.clone(), columns: cells, rows: Vec::new() }),
        }
        inside = true;
    }
    tables
}

/// The words of a text that stand between backticks.
pub fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// What serde asks for at one place of a type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// `bool`, `number`, `string`, `any`, or the name of a structure.
    pub kind: &'static str,
    /// The fields of the structure.
    pub fields: &'static [&'static str],
    pub is_optional: bool,
    pub is_list: bool,
    pub is_map: bool,
}

/// The shapes of a type and of all fields below it, by their names from the outside to the inside. The fields of a list or of
/// a map are those of what it holds. A type that checks its values is asked for them all the same: nothing is read but shapes.
pub fn shapes<'de, T: Deserialize<'de>>() -> BTreeMap<Vec<&'static str>, Shape> {
    let (mut shapes, mut open) = (BTreeMap::new(), vec![Vec::new()]);
    while let Some(path) = open.pop() {
        let shape = RefCell::default();
        let _ = T::deserialize(Probe { path: &path, shape: &shape });
        let shape: Shape = shape.into_inner();
        open.extend(shape.fields.iter().map(|field| [&path[..], &[*field]].concat()));
        shapes.insert(path, shape);
    }
    shapes
}

/// Input that has only one field, down to the place of which the shape is wanted, and ends there with an error.
#[derive(Clone, Copy)]
struct Probe<'a> {
    path: &'a [&'static str],
    shape: &'a RefCell<Shape>,
}

impl Probe<'_> {
    /// Notes something about the shape, if this is the place.
    fn note(self, change: impl FnOnce(&mut Shape)) {
        if self.path.is_empty() {
            change(&mut self.shape.borrow_mut());
        }
    }

    fn is<T>(self, kind: &'static str) -> Result<T, Error> {
        self.note(|shape| shape.kind = kind);
        Err(serde::de::Error::custom("seen"))
    }
}

macro_rules! leaves {
    ($($method:ident: $kind:literal,)*) => {$(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            self.is($kind)
        }
    )*};
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    leaves! {
        deserialize_bool: "bool",
        deserialize_i8: "number", deserialize_i16: "number", deserialize_i32: "number", deserialize_i64: "number",
        deserialize_u8: "number", deserialize_u16: "number", deserialize_u32: "number", deserialize_u64: "number",
        deserialize_f32: "number", deserialize_f64: "number",
        deserialize_char: "string", deserialize_str: "string", deserialize_string: "string",
        deserialize_bytes: "any", deserialize_byte_buf: "any", deserialize_any: "any", deserialize_ignored_any: "any",
        deserialize_identifier: "any", deserialize_unit: "any",
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note(|shape| shape.is_optional = true);
        visitor.visit_some(self)
    }
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note(|shape| shape.is_list = true);
        visitor.visit_seq(Held { probe: self, keys: &["0"] })
    }
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note(|shape| shape.is_map = true);
        visitor.visit_map(Held { probe: self, keys: &["0"] })
    }
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name.starts_with(SPANNED) {
            return visitor.visit_map(Held { probe: self, keys: fields });
        }
        let Some((field, path)) = self.path.split_first() else {
            self.note(|shape| shape.fields = fields);
            return self.is(name);
        };
        visitor.visit_map(Held { probe: Probe { path, ..self }, keys: std::slice::from_ref(field) })
    }
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.is("string")
    }
    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, _: V) -> Result<V::Value, Error> {
        self.is("any")
    }
    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }
}

/// Begins the names with which `toml::Spanned` asks for a value and for its place in the text.
const SPANNED: &str = "$__serde_spanned_private_";

/// A list, a map or a structure with these keys.
struct Held<'a> {
    probe: Probe<'a>,
    keys: &'a [&'static str],
}

impl<'de> SeqAccess<'de> for Held<'_> {
    type Error = Error;
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        seed.deserialize(self.probe).map(Some)
    }
}

impl<'de> MapAccess<'de> for Held<'_> {
    type Error = Error;
    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some(key) = self.keys.first() else { return Ok(None) };
        seed.deserialize(Key(key)).map(Some)
    }
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let (key, left) = self.keys.split_first().expect("a value follows its key");
        self.keys = left;
        match key.strip_prefix(SPANNED) {
            Some("start" | "end") => seed.deserialize(0_u64.into_deserializer()),
            _ => seed.deserialize(self.probe),
        }
    }
}

/// A key of a map: text, also where a type wants it as a number.
struct Key(&'static str);

impl<'de> Deserializer<'de> for Key {
    type Error = Error;
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.parse() {
            Ok(number) => visitor.visit_u64(number),
            Err(_) => visitor.visit_borrowed_str(self.0),
        }
    }
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.0)
    }
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.0)
    }
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }
    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf option unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}
