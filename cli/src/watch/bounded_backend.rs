//! Terminal backend with a bounded size, because some terminals claim 65,535 columns and lines.

use ratatui::backend::{Backend, ClearType, CrosstermBackend, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use std::io::{self, Stdout, stdout};

/// Largest area that is drawn, in columns and lines.
const MOST: Size = Size { width: 1000, height: 500 };

/// Backend that draws on stdout, limited to the area [`MOST`].
pub(super) struct BoundedBackend(CrosstermBackend<Stdout>);

impl BoundedBackend {
    pub(super) fn new() -> Self {
        Self(CrosstermBackend::new(stdout()))
    }
}

fn bounded(size: Size) -> Size {
    Size { width: size.width.min(MOST.width), height: size.height.min(MOST.height) }
}

impl Backend for BoundedBackend {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        self.0.draw(content)
    }

    fn append_lines(&mut self, lines: u16) -> io::Result<()> {
        self.0.append_lines(lines)
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.0.hide_cursor()
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.0.show_cursor()
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        self.0.get_cursor_position()
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.0.set_cursor_position(position)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.0.clear()
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.0.clear_region(region)
    }

    fn size(&self) -> io::Result<Size> {
        self.0.size().map(bounded)
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let found = self.0.window_size()?;
        Ok(WindowSize { columns_rows: bounded(found.columns_rows), ..found })
    }

    fn flush(&mut self) -> io::Result<()> {
        Backend::flush(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_bounds_is_drawn_in_part() {
        assert_eq!(bounded(Size::new(65_535, 65_535)), MOST);
        assert_eq!(bounded(Size::new(80, 24)), Size::new(80, 24));
    }
}
