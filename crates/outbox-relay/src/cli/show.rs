use super::Failure;
use super::out::{self, Format};
use crate::config::Loaded;

/// `outbox config show`
pub(super) fn config(loaded: &Loaded, format: Format) -> Result<(), Failure> {
    let entries = loaded.entries();
    match format {
        Format::Json => out::json(&entries)?,
        Format::Table => {
            let rows: Vec<[String; 3]> =
                entries.into_iter().map(|entry| [entry.key, entry.value, entry.from]).collect();
            out::table(["KEY", "VALUE", "FROM"], &rows)?;
        }
    }
    for warning in &loaded.warnings {
        out::note(format_args!("warning: {warning}"));
    }
    Ok(())
}
