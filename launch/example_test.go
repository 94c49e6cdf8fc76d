// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"fmt"
	"log"

	"github.com/cohort-dist/cohort/launch"
)

// What a job would start: torchrun --nproc-per-node 2 --no-python ./train --lr 0.1
func ExampleDryRun() {
	plan, err := launch.DryRun(launch.Config{
		Program: []string{"./train", "--lr", "0.1", "--device=${local_rank}"}, How: launch.Executable, Workers: 2, RunID: "demo",
		Keeper: []string{"./train", "keeper"}, // this program again; it calls launch.KeeperMain
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
