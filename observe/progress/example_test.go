// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"fmt"

	"github.com/cohort-dist/cohort/observe/progress"
)

func loadBatch(n int) int {
	defer progress.Section("load")()
	return n * n
}

// A rank that hangs while it reads its data is "in section "load" for 40 s, step 2" for "cohort why".
func ExampleSection() {
	for n := range 3 {
		fmt.Println(loadBatch(n))
		progress.Step()
	}
	// Output:
	// 0
	// 1
	// 4
}

func ExampleStepTo() {
	const first = 1000 // that of the checkpoint
	progress.StepTo(first)
	for range 3 {
		progress.Step()
	}
	fmt.Println("1003 steps")
	// Output: 1003 steps
}
