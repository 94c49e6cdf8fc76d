// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	t.Parallel()
	const second = int64(time.Second)
	var p progress
	p.Start(second)
	for name, c := range map[string]struct {
		moved, now, bytes int64
		want              bool
	}{
		"just begun":            {1, 1, 100, false},
		"within the pause":      {1, 6, 100, false},
		"nothing moves":         {1, 7, 100, true},
		"much, and it moves":    {20, 21, 1000, false},
		"little, and it crawls": {20, 21, 10, true},
	} {
		p.Moved = c.moved * second
		if got := p.Slow(c.now*second, 5*second, c.bytes, 50); got != c.want {
			t.Errorf("%s: slow is %v", name, got)
		}
	}
	held, fresh := progress{Since: 0, Moved: 0}, progress{Since: 9 * second, Moved: 9 * second}
	if held.Blame(10*second, 1<<10) <= fresh.Blame(10*second, 2<<10) {
		t.Error("who holds bytes for long is blamed less than who holds a little more for a moment")
	}
}
