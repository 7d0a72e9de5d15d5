//! Arguments of `dtrain recipe`.

use crate::completions;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum RecipeCommand {
    /// List the recipes of the library and of added packages
    #[command(after_help = "Example:\n  dtrain recipe list")]
    List,

    /// Add a package of recipes from a git repository, and pin it in dtrain.lock
    #[command(after_help = "Example:\n  dtrain recipe add https://example.org/team/recipes.git --rev v1.2")]
    Add(AddArgs),

    /// Print a recipe as it was written
    #[command(after_help = "Example:\n  dtrain recipe show library/tiny-llama > recipe.toml")]
    Show {
        /// `library/NAME` or `PACKAGE/RECIPE`
        #[arg(add = completions::recipe_name())]
        name: String,
    },

    /// Update one package or all packages
    #[command(after_help = "Example:\n  dtrain recipe update team")]
    Update {
        /// The package [default: all]
        #[arg(add = completions::package())]
        package: Option<String>,

        /// Also allow repositories on this machine
        #[arg(long)]
        allow_file: bool,
    },

    /// Remove a package from dtrain.lock, and the permission to run its programs
    #[command(
        after_help = "Example:\n  dtrain recipe remove team\n\nThe downloaded copy goes as well, unless another dtrain.lock names it."
    )]
    Remove {
        /// The package
        #[arg(add = completions::package())]
        package: String,
    },

    /// Check packages against dtrain.lock and fetch missing ones
    #[command(after_help = "Example:\n  dtrain recipe verify")]
    Verify {
        /// Also allow repositories on this machine
        #[arg(long)]
        allow_file: bool,
    },

    /// Commit a recipe to a branch of a git repository, and push it
    #[command(after_help = "Example:\n  dtrain recipe publish recipe.toml --repository ../recipes")]
    Publish(PublishArgs),

    /// Trust a package: allow its recipes to run programs and pass options to sbatch
    #[command(after_help = "Example:\n  dtrain recipe trust team")]
    Trust {
        /// The package
        #[arg(add = completions::package())]
        package: String,
    },

    /// Print every recipe key
    #[command(after_help = "Example:\n  dtrain recipe keys")]
    Keys,
}

#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// The repository: https, ssh, or with --allow-file a folder
    pub(crate) url: String,

    /// Name of the package [default: the last part of the address]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Tag, branch or commit to follow [default: the default branch]
    #[arg(long)]
    pub(crate) rev: Option<String>,

    /// Also allow repositories on this machine
    #[arg(long)]
    pub(crate) allow_file: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PublishArgs {
    /// The recipe
    #[arg(default_value = "recipe.toml")]
    pub(crate) recipe: PathBuf,

    /// The repository; its work tree is not touched
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub(crate) repository: PathBuf,

    /// Branch that gets the commit [default: recipes/NAME]
    #[arg(long)]
    pub(crate) branch: Option<String>,

    /// Commit message
    #[arg(long)]
    pub(crate) message: Option<String>,

    /// Remote to push the branch to, if it exists
    #[arg(long, default_value = "origin")]
    pub(crate) remote: String,

    /// Allow pushing to a repository on this machine
    #[arg(long)]
    pub(crate) allow_file: bool,
}
