//! Makes a plan come true on machines that fail: a pure machine inside a thin driver.
