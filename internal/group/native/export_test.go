// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

// Copied returns the bytes that collectives copied: of messages, and of a rank's own block on the way to its own result.
func (e *Engine) Copied() (sent, kept int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.copied.sent, e.mu.copied.kept
}
