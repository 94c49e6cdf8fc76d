// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package curve

import (
	"math"
	"strings"
	"testing"
)

func TestDraw(t *testing.T) {
	t.Parallel()
	values := make([]float64, 500)
	for i := range values {
		values[i] = math.Exp(-float64(i) / 100)
	}
	lines := strings.Split(strings.TrimRight(Draw(values), "\n"), "\n")
	if len(lines) != height {
		t.Fatalf("%d lines", len(lines))
	}
	if !strings.Contains(lines[0], "█") || strings.HasSuffix(lines[0], "█") || !strings.HasSuffix(lines[height-1], "▁") {
		t.Errorf("the curve does not fall:\n%s", strings.Join(lines, "\n"))
	}
	if Draw(nil) != "" || Draw([]float64{2, 2}) == "" {
		t.Error("nothing, or something constant, is drawn wrongly")
	}
}
