// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective_test

import (
	"bytes"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/collective"
)

func TestCopy(t *testing.T) {
	const longest = 9 << 20
	src := make([]byte, longest)
	for i := range src {
		src[i] = byte(i*7 + i>>9)
	}
	for _, n := range []int{0, 1, 512<<10 - 1, 512 << 10, 512<<10 + 1, 1 << 20, 8 << 20, 8<<20 + 1} {
		dst := make([]byte, n+1)
		if got := collective.Copy(dst[:n], src); got != n || !bytes.Equal(dst[:n], src[:n]) || dst[n] != 0 {
			t.Errorf("Copy of %d bytes into a shorter room: %d copied, equal %v", n, got, bytes.Equal(dst[:n], src[:n]))
		}
		clear(dst)
		if got := collective.Copy(dst, src[:n]); got != n || !bytes.Equal(dst[:n], src[:n]) || dst[n] != 0 {
			t.Errorf("Copy of %d bytes: %d copied, equal %v", n, got, bytes.Equal(dst[:n], src[:n]))
		}
	}
}
