// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"fmt"
	"os"
	"time"
)

// use is how long a thread has wanted a processor until a moment.
type use struct {
	tid    int
	wanted time.Duration // it ran, or waited for its turn; 0: not known
	at     time.Time
}

// usesOf returns the use of the main thread of each process.
func usesOf(all []reading) []use {
	uses := make([]use, len(all))
	for i, r := range all {
		if r.process != nil && r.process.Main() != nil {
			uses[i] = useOf(r.process.PID, r.process.Main().ID)
		}
	}
	return uses
}

func useOf(pid, tid int) use {
	u := use{tid: tid, at: time.Now()}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, tid))
	if err != nil {
		return u
	}
	var ran, waited time.Duration
	if _, err := fmt.Sscan(string(b), &ran, &waited); err == nil { // nanoseconds
		u.wanted = ran + waited
	}
	return u
}

// minApart is the time between two readings that is too short to tell by.
const minApart = 20 * time.Millisecond

// slept reports whether a thread slept for most of the time between two readings. Its state at one moment does not tell: a thread
// that looks for a file every few milliseconds is seen running now and then.
func slept(before, after use) bool {
	apart := after.at.Sub(before.at)
	return before.wanted > 0 && after.wanted > 0 && before.tid == after.tid && apart >= minApart && after.wanted-before.wanted < apart/4
}
