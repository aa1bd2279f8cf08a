//! Formats: how values stand in a message. One description serves reading and writing.
//!
//! [`layout!`] describes a structure by its fields in order. [`choice!`] describes an enum whose variants have numbers. They
//! are made of numbers ([`U8`] and so on), [`REST`], [`Text`] and these:
//!
//! | format | is |
//! |---|---|
//! | `Pad(format, n)`, `Skip(n, format)` | a value with `n` bytes of padding after it, before it |
//! | `Except(format, none)` | an optional value; the value `none` stands for its absence |
//! | `OneOf(format, list, bad)` | a value from a list, written as its index |
//! | `OnlyIf(condition, format, n)` | an optional value; without the condition its `n` bytes are ignored |
//! | `Check(format, read, write)` | a value that is checked: after it is read, and before it is written |
//! | `List(format)` | values until the end |
//! | `Sized(at, bad, format)` | a structure whose 16-bit length is `at` bytes after its beginning |
//! | `Counted(n, bad, format)` | a 16-bit length, `n` bytes of padding, and a value of this length |
//! | `Layout(read, write)` | anything else: a function for each direction |

use super::{
    BadMessage, CannotSay,
    wire::{Reader, Write},
};

/// How a value of this type stands in a message.
pub trait Format: Copy {
    type Value;
    fn read(self, r: &mut Reader<'_>) -> Result<Self::Value, BadMessage>;
    fn write(self, value: &Self::Value, out: &mut Vec<u8>) -> Result<(), CannotSay>;
    /// The number of items of a list, which may be in different messages. `None`: the value must be in one message.
    fn items(self, _value: &Self::Value) -> Option<usize> {
        None
    }
    fn write_item(self, value: &Self::Value, _at: usize, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        self.write(value, out)
    }
}

type ReadFn<T> = fn(&mut Reader<'_>) -> Result<T, BadMessage>;
type WriteFn<T> = fn(&T, &mut Vec<u8>) -> Result<(), CannotSay>;

#[derive(Debug)]
pub struct Layout<T>(pub ReadFn<T>, pub WriteFn<T>);

impl<T> Clone for Layout<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Layout<T> {}

impl<T> Format for Layout<T> {
    type Value = T;
    fn read(self, r: &mut Reader<'_>) -> Result<T, BadMessage> {
        self.0(r)
    }
    fn write(self, value: &T, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        self.1(value, out)
    }
}

/// The layout of a struct: its fields in order, each with its format. A format may refer to fields before it. Fields in the
/// braces after `absent` are not in the message; when reading, they get these values.
macro_rules! layout {
    ($type:ident { $($field:ident: $format:expr),+ $(,)? }
     $(, absent { $($absent:ident: $value:expr),+ $(,)? })?) => {
        $crate::openflow::format::Layout(
            |r| {
                $(let $field = $format.read(r)?;)+
                Ok($type { $($field,)+ $($($absent: $value,)+)? })
            },
            |value: &$type, out| {
                $(
                    let $field = &value.$field;
                    #[allow(clippy::needless_borrow)]
                    $format.write($field, out)?;
                )+
                Ok(())
            },
        )
    };
}
pub(super) use layout;

/// An enum whose variants have numbers in a message.
pub trait Choice {
    type Number;
    type Value;
    fn number(value: &Self::Value) -> Result<Self::Number, CannotSay>;
    /// Reads the variant of this number, from the byte after the number.
    fn read(number: Self::Number, r: &mut Reader<'_>) -> Result<Self::Value, BadMessage>;
    /// Writes a variant without its number.
    fn write(value: &Self::Value, out: &mut Vec<u8>) -> Result<(), CannotSay>;
    /// As [`Format::items`] and [`Format::write_item`].
    fn items(value: &Self::Value) -> Option<usize>;
    fn write_item(value: &Self::Value, at: usize, out: &mut Vec<u8>) -> Result<(), CannotSay>;
}

/// Implements [`Choice`] by a table. A row is a number, a variant, and formats of what the variant holds:
///
/// ```text
/// 2 => EchoRequest(data: REST),
/// 24 => RoleRequest { role: ROLE, generation: U64 },
/// 19 => StatsReply by (read, write) of (reply, more),
/// ```
///
/// In the last form, `read` returns these fields as a tuple, and `write` gets a reference to each. An unknown number gives
/// the error after `else`. Variants after `never` cannot be expressed.
macro_rules! choice {
    (
        $(#[$doc:meta])*
        $vis:vis $name:ident: $number:ty => $enum:ident else $unknown:expr;
        $($kind:path => $variant:ident
            $(($one:ident: $whole:expr))?
            $({ $($field:ident: $format:expr),+ $(,)? })?
            $(by ($read:path, $write:path) of ($($part:ident),+))?
        ),+ $(,)?
        $(; never $($other:pat => $error:expr),+ $(,)?)?
    ) => {
        $(#[$doc])*
        $vis struct $name;

        #[allow(unreachable_patterns)]
        impl $crate::openflow::format::Choice for $name {
            type Number = $number;
            type Value = $enum;
            fn number(value: &$enum) -> Result<$number, CannotSay> {
                match value {
                    $($enum::$variant { .. } => Ok($kind),)+
                    $($($other => Err($error),)+)?
                }
            }
            fn read(number: $number, r: &mut Reader<'_>) -> Result<$enum, BadMessage> {
                Ok(match number {
                    $($kind => {
                        $(let ($($part),+) = $read(r)?;)?
                        $enum::$variant
                            $(($whole.read(r)?))?
                            $({ $($field: $format.read(r)?),+ })?
                            $({ $($part),+ })?
                    })+
                    _ => return Err($unknown.into()),
                })
            }
            fn write(value: &$enum, out: &mut Vec<u8>) -> Result<(), CannotSay> {
                match value {
                    $($enum::$variant $(($one))? $({ $($field),+ })? $({ $($part),+ })? => {
                        $($whole.write($one, out)?;)?
                        $($($format.write($field, out)?;)+)?
                        $($write($($part,)+ out)?;)?
                    })+
                    $($($other => return Err($error),)+)?
                }
                Ok(())
            }
            fn items(value: &$enum) -> Option<usize> {
                match value {
                    $($($enum::$variant($one) => $whole.items($one),)?)+
                    _ => None,
                }
            }
            fn write_item(value: &$enum, at: usize, out: &mut Vec<u8>) -> Result<(), CannotSay> {
                match value {
                    $($($enum::$variant($one) => $whole.write_item($one, at, out),)?)+
                    other => Self::write(other, out),
                }
            }
        }
    };
}
pub(super) use choice;

macro_rules! integers {
    ($($name:ident: $type:ident),+) => {$(
        /// An integer, big-endian.
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Format for $name {
            type Value = $type;
            fn read(self, r: &mut Reader<'_>) -> Result<$type, BadMessage> {
                r.$type()
            }
            fn write(self, value: &$type, out: &mut Vec<u8>) -> Result<(), CannotSay> {
                out.$type(*value);
                Ok(())
            }
        }
    )+};
}
integers!(U8: u8, U16: u16, U32: u32, U64: u64);

/// All bytes until the end.
pub const REST: Layout<Vec<u8>> = Layout(
    |r| r.take(r.rest().len()).map(<[u8]>::to_vec),
    |bytes, out| {
        out.extend_from_slice(bytes);
        Ok(())
    },
);

/// A number of 32-bit integers.
pub const fn words<const N: usize>() -> Layout<[u32; N]> {
    Layout(
        |r| {
            let mut words = [0; N];
            for word in &mut words {
                *word = r.u32()?;
            }
            Ok(words)
        },
        |words, out| words.iter().try_for_each(|word| U32.write(word, out)),
    )
}

/// A string in a field of this many bytes.
#[derive(Clone, Copy, Debug)]
pub struct Text(pub usize);

impl Format for Text {
    type Value = Vec<u8>;
    fn read(self, r: &mut Reader<'_>) -> Result<Vec<u8>, BadMessage> {
        r.text(self.0)
    }
    fn write(self, text: &Vec<u8>, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        out.text(text, self.0);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Pad<F>(pub F, pub usize);

impl<F: Format> Format for Pad<F> {
    type Value = F::Value;
    fn read(self, r: &mut Reader<'_>) -> Result<F::Value, BadMessage> {
        let value = self.0.read(r)?;
        r.skip(self.1)?;
        Ok(value)
    }
    fn write(self, value: &F::Value, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        self.0.write(value, out)?;
        out.zeros(self.1);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Skip<F>(pub usize, pub F);

impl<F: Format> Format for Skip<F> {
    type Value = F::Value;
    fn read(self, r: &mut Reader<'_>) -> Result<F::Value, BadMessage> {
        r.skip(self.0)?;
        self.1.read(r)
    }
    fn write(self, value: &F::Value, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        out.zeros(self.0);
        self.1.write(value, out)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Except<F, T>(pub F, pub T);

impl<F: Format<Value = T>, T: Copy + PartialEq> Format for Except<F, T> {
    type Value = Option<T>;
    fn read(self, r: &mut Reader<'_>) -> Result<Option<T>, BadMessage> {
        self.0.read(r).map(|value| (value != self.1).then_some(value))
    }
    fn write(self, value: &Option<T>, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        self.0.write(&value.unwrap_or(self.1), out)
    }
}

/// A value that is not in the list is written as the last one in it.
#[derive(Clone, Copy, Debug)]
pub struct OneOf<F, T: 'static>(pub F, pub &'static [T], pub BadMessage);

impl<F: Format<Value: Into<u32> + TryFrom<usize>>, T: Copy + PartialEq> Format for OneOf<F, T> {
    type Value = T;
    fn read(self, r: &mut Reader<'_>) -> Result<T, BadMessage> {
        let index: u32 = self.0.read(r)?.into();
        self.1.get(index as usize).copied().ok_or(self.2)
    }
    fn write(self, value: &T, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        let index = self.1.iter().position(|one| one == value).unwrap_or(self.1.len() - 1);
        F::Value::try_from(index).map_or(Ok(()), |index| self.0.write(&index, out))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Check<F, R, W>(pub F, pub R, pub W);

impl<F: Format, R, W> Format for Check<F, R, W>
where
    R: Fn(&F::Value) -> Result<(), BadMessage> + Copy,
    W: Fn(&F::Value) -> Result<(), CannotSay> + Copy,
{
    type Value = F::Value;
    fn read(self, r: &mut Reader<'_>) -> Result<F::Value, BadMessage> {
        let value = self.0.read(r)?;
        self.1(&value).map(|()| value)
    }
    fn write(self, value: &F::Value, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        self.2(value)?;
        self.0.write(value, out)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct OnlyIf<F>(pub bool, pub F, pub usize);

impl<F: Format<Value = Option<T>>, T> Format for OnlyIf<F> {
    type Value = Option<T>;
    fn read(self, r: &mut Reader<'_>) -> Result<Option<T>, BadMessage> {
        if self.0 { self.1.read(r) } else { r.skip(self.2).map(|()| None) }
    }
    fn write(self, value: &Option<T>, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        self.1.write(value, out)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct List<F>(pub F);

impl<F: Format> Format for List<F> {
    type Value = Vec<F::Value>;
    fn read(self, r: &mut Reader<'_>) -> Result<Vec<F::Value>, BadMessage> {
        let mut items = Vec::new();
        while !r.is_empty() {
            items.push(self.0.read(r)?);
        }
        Ok(items)
    }
    fn write(self, items: &Vec<F::Value>, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        items.iter().try_for_each(|item| self.0.write(item, out))
    }
    fn items(self, items: &Vec<F::Value>) -> Option<usize> {
        Some(items.len())
    }
    fn write_item(self, items: &Vec<F::Value>, at: usize, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        self.0.write(&items[at], out)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Sized<F>(pub usize, pub BadMessage, pub F);

impl<F: Format> Format for Sized<F> {
    type Value = F::Value;
    fn read(self, r: &mut Reader<'_>) -> Result<F::Value, BadMessage> {
        self.2.read(&mut r.structure(self.0, self.1)?)
    }
    fn write(self, value: &F::Value, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        let from = out.len();
        self.2.write(value, out)?;
        out.patch_length(from + self.0, from);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Counted<F>(pub usize, pub BadMessage, pub F);

impl<F: Format> Format for Counted<F> {
    type Value = F::Value;
    fn read(self, r: &mut Reader<'_>) -> Result<F::Value, BadMessage> {
        let length = Pad(U16, self.0).read(r)?;
        self.2.read(&mut r.part(length.into(), self.1)?)
    }
    fn write(self, value: &F::Value, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        let length = out.len();
        out.zeros(2 + self.0);
        self.2.write(value, out)?;
        out.patch_length(length, length + 2 + self.0);
        Ok(())
    }
}
