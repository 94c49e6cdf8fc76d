// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import "fmt"

// String names the context by its id.
func (c *Context) String() string { return fmt.Sprintf("autograd context %d", int64(c.ID())) }

// String says how many contexts and passes there are.
func (e *Engine) String() string {
	s := e.Stats()
	return fmt.Sprintf("autograd engine (%d contexts, %d passes)", s.Contexts, s.Passes)
}
