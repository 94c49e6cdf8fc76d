// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"fmt"
	"sync"
)

// Places is where the main threads of Python processes stand, for each process that could be read and did not move meanwhile.
type Places map[int]string

// Places reads processes at the same time.
func (r *Reader) Places(ctx context.Context, pids []int) Places {
	all := make([]string, len(pids))
	var wg sync.WaitGroup
	for i, pid := range pids {
		wg.Go(func() {
			p, err := r.Read(ctx, pid)
			if err != nil {
				return
			}
			if main := p.Main(); main != nil && !main.Moving {
				all[i] = fmt.Sprint(main.Frames)
			}
		})
	}
	wg.Wait()
	places := Places{}
	for i, pid := range pids {
		if all[i] != "" {
			places[pid] = all[i]
		}
	}
	return places
}

// Same reports whether a process is known to stand where it stood.
func (p Places) Same(later Places, pid int) bool {
	at, known := p[pid]
	return known && later[pid] == at
}
