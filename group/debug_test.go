// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/store"
)

// TestDebugLevel: PyTorch's variable is read as PyTorch reads it, and a value that PyTorch refuses is refused.
func TestDebugLevel(t *testing.T) {
	for value, detail := range map[string]bool{
		"": false, "OFF": false, "off": false, "oFf": false, "INFO": false, "info": false, "INfO": false,
		"DETAIL": true, "detail": true, "DeTaIl": true,
	} {
		t.Setenv(collective.DebugVariable, value)
		c := newConfig(nil)
		if err := c.check("test"); err != nil || c.Detail != detail {
			t.Errorf("%q: detail %v, %v", value, c.Detail, err)
		}
	}
	for _, value := range []string{"foo", "0", "1", "-1", "DETIAL"} {
		t.Setenv(collective.DebugVariable, value)
		s := store.NewMemory()
		g, err := New(context.Background(), s, 0, 1)
		if g != nil || !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), collective.DebugVariable) ||
			!strings.Contains(err.Error(), "OFF, INFO or DETAIL") {
			t.Errorf("%q: %v", value, err)
		}
		_ = s.Close()
	}
}
