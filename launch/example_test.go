// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/launch"
)

// What a job would start: torchrun --nproc-per-node 2 --no-python ./train --lr 0.1
func ExampleDryRun() {
	plan, err := launch.DryRun(launch.Config{
		Program: []string{"./train", "--lr", "0.1", "--device=${local_rank}"}, How: launch.Executable, Workers: 2, RunID: "demo",
		Supervisor: []string{"./train", "supervisor"}, // this program again; it calls launch.SupervisorMain
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, w := range plan.Workers {
		fmt.Println("rank", w.Rank, w.Command)
	}
	// Output:
	// rank 0 [./train --lr 0.1 --device=0]
	// rank 1 [./train --lr 0.1 --device=1]
}

// A program that runs a job of two workers and says which of them failed.
func ExampleRun() {
	if len(os.Args) > 1 && os.Args[1] == "supervisor" { // started by Run
		os.Exit(launch.SupervisorMain())
	}
	report, err := launch.Run(context.Background(), launch.Config{
		Program: []string{"./train"}, Workers: 2, MaxRestarts: 3, Supervisor: []string{os.Args[0], "supervisor"},
	}, launch.Screen{Out: os.Stdout, Err: os.Stderr}, nil)
	switch {
	case err == nil:
		fmt.Println("done after", len(report.Attempts), "attempts")
	case errors.Is(err, cohort.Remote):
		fmt.Println("a worker failed:", report.Sentence)
	default:
		log.Fatal(err)
	}
}
