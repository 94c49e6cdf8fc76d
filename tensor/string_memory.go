// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import "fmt"

// String reports how large the storage is and where its memory is from.
func (s *Storage) String() string {
	if s.Released() {
		return "released storage"
	}
	return fmt.Sprintf("storage of %d bytes (%s)", s.Len(), s.Origin())
}

// String reports how much memory the pool keeps.
func (p *Pool) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("pool (%d of %d bytes kept)", p.kept, p.keep)
}
