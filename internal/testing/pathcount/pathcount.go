// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package pathcount counts the functions and files that one operation enters, so that a test can keep paths short.
//
// A program that is built with coverage of the whole module calls [Operation] for what is to be measured. The test builds such a program,
// runs it, and reads what was counted. What only a build tag compiles in, such as failpoints, is not counted.
package pathcount

import (
	"fmt"
	"os"
	"runtime/coverage"
	"time"
)

// folderVariable names the folder into which a program writes its counters.
const folderVariable = "COHORT_PATHCOUNT"

// settle is for how long other goroutines may end what they do for an operation, or for those before it.
const settle = 50 * time.Millisecond

// Operation counts what runs while operation does, in this goroutine and in others. The program should have done the
// same before: setting up is not part of the path. It is called once, and ends the program when something is wrong.
func Operation(operation func() error) {
	folder := os.Getenv(folderVariable)
	time.Sleep(settle) //nolint:forbidigo // what ends shows itself nowhere
	err := coverage.ClearCounters()
	if err == nil {
		err = operation()
	}
	if err == nil {
		time.Sleep(settle) //nolint:forbidigo // as above
		err = coverage.WriteCountersDir(folder)
	}
	if err == nil {
		err = coverage.WriteMetaDir(folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "count the path of an operation:", err)
		os.Exit(1)
	}
}
