//! Enums of words.

/// Declares an enum whose names are the same on the command line, in JSON and in text.
macro_rules! words {
    (
        $(#[$meta:meta])*
        enum $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize, clap::ValueEnum)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $word)] #[value(name = $word)] $variant,)*
        }

        impl $name {
            /// Returns the name on the command line, in JSON and in text.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use words;
