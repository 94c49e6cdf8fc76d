// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ncclras asks NCCL's RAS (reliability, availability and serviceability: a network of threads in all ranks) what the ranks of
// NCCL's communicators are doing. Every process of NCCL 2.24 and later takes part and answers for all, also while its main thread hangs.
package ncclras

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// DefaultAddr is where processes answer unless NCCL_RAS_ADDR says otherwise.
const DefaultAddr = "localhost:28028"

// maxReport bounds a report: some hundred bytes for each rank of each communicator.
const maxReport = 64 << 20

// Report is what NCCL knows.
type Report struct {
	Communicators []Communicator `json:"communicators"`
	// Text is what NCCL before 2.28 says instead: its errors and warnings, about all jobs that it knows.
	Text []string `json:"-"`
}

// Communicator is a group of ranks.
type Communicator struct {
	Hash    string `json:"hash"`
	Size    int    `json:"size"`
	Ranks   []Rank `json:"ranks"`
	Missing []Rank `json:"missing_ranks"`
}

// Rank is a rank of a communicator.
type Rank struct {
	Rank   int    `json:"rank"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	Status struct {
		AsyncError int  `json:"async_error"`
		Abort      bool `json:"abort_flag"`
	} `json:"status"`
	// Counts are the operations that it has started, by name.
	Counts map[string]int `json:"collective_counts"`
	// Of a missing one.
	Unresponsive bool `json:"unresponsive"`
	Dead         bool `json:"dead"`
}

// Ask asks a process. ctx bounds it.
func Ask(ctx context.Context, addr string) (*Report, error) {
	conn, err := ctxdial.Dial(ctx, &net.Dialer{}, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("ncclras: %w", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	in := bufio.NewReader(io.LimitReader(conn, maxReport))
	for _, step := range [][2]string{
		{"CLIENT PROTOCOL 2", "SERVER PROTOCOL"},
		{"TIMEOUT 1", "OK"},
		{asJSON, "OK"},
		{"VERBOSE STATUS", ""},
	} {
		if _, err = io.WriteString(conn, step[0]+"\n"); err != nil {
			return nil, fmt.Errorf("ncclras: %w", err)
		}
		if step[1] == "" { // the report follows
			break
		}
		var line []byte
		if line, err = in.ReadSlice('\n'); err != nil {
			return nil, fmt.Errorf("ncclras: %w", err)
		}
		if !strings.HasPrefix(string(line), step[1]) {
			if step[0] == asJSON {
				return askText(conn, in)
			}
			return nil, fmt.Errorf("ncclras: the answer to %s is %.60q", step[0], line)
		}
	}
	var r Report
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return nil, errors.Join(fmt.Errorf("ncclras: the report: %w", err), ctx.Err())
	}
	return &r, nil
}

// asJSON asks for the report as JSON, which NCCL before 2.28 does not know.
const asJSON = "SET FORMAT json"

// askText asks for the report as text and returns its errors and warnings.
func askText(conn io.Writer, in *bufio.Reader) (*Report, error) {
	if _, err := io.WriteString(conn, "VERBOSE STATUS\n"); err != nil {
		return nil, fmt.Errorf("ncclras: %w", err)
	}
	r := Report{Text: []string{}}
	found := false // the heading
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		switch text := strings.TrimSpace(lines.Text()); {
		case text == "Errors" || text == "Warnings":
			found = true
		case found && strings.Trim(text, "=") != "":
			r.Text = append(r.Text, "NCCL, of all jobs on this host: "+text)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("ncclras: the report: %w", err)
	}
	return &r, nil
}

// Of leaves the communicators that one of the processes is in: another job may have answered.
func (r *Report) Of(pids []int) {
	r.Communicators = slices.DeleteFunc(r.Communicators, func(c Communicator) bool {
		return !slices.ContainsFunc(c.Ranks, func(r Rank) bool { return slices.Contains(pids, r.PID) })
	})
}

// Lines say what sets ranks apart, and that nothing does. Ranks are those of the communicators.
func (r *Report) Lines() []string {
	if len(r.Communicators) == 0 {
		return r.Text
	}
	var lines []string
	for _, c := range r.Communicators {
		lines = append(lines, c.lines()...)
	}
	if len(lines) == 0 {
		return []string{fmt.Sprintf("NCCL: all ranks of %d communicators answer and have started equally many operations",
			len(r.Communicators))}
	}
	return lines
}

func (c Communicator) lines() []string {
	who := fmt.Sprintf("NCCL, communicator %.20s of %d ranks: ", c.Hash, c.Size)
	var lines []string
	for _, m := range c.Missing {
		state := "is missing"
		switch {
		case m.Dead:
			state = "is dead"
		case m.Unresponsive:
			state = "does not answer"
		}
		lines = append(lines, fmt.Sprintf("%srank %d (host %.60s, process %d) %s", who, m.Rank, m.Host, m.PID, state))
	}
	counts := map[string]map[int][]int{} // by operation and number
	for _, r := range c.Ranks {
		if words := r.trouble(); words != "" {
			lines = append(lines, fmt.Sprintf("%srank %d %s", who, r.Rank, words))
		}
		for op, n := range r.Counts {
			if counts[op] == nil {
				counts[op] = map[int][]int{}
			}
			counts[op][n] = append(counts[op][n], r.Rank)
		}
	}
	for _, op := range sortedKeys(counts) {
		if len(counts[op]) < 2 {
			continue
		}
		var parts []string
		for _, n := range sortedKeys(counts[op]) {
			ranks := counts[op][n]
			slices.Sort(ranks)
			parts = append(parts, fmt.Sprintf("%d times by %s", n, ranklist.Named(ranks)))
		}
		lines = append(lines, fmt.Sprintf("%s%.20s was started %s", who, op, strings.Join(parts, ", ")))
	}
	return lines
}

// inProgress is NCCL's ncclInProgress: a communicator that does not block is at work.
const inProgress = 7

// trouble says what NCCL itself has noticed at a rank; empty if nothing.
func (r Rank) trouble() string {
	failed := r.Status.AsyncError != 0 && r.Status.AsyncError != inProgress
	switch {
	case r.Status.Abort && failed:
		return "was aborted after " + errorName(r.Status.AsyncError)
	case r.Status.Abort:
		return "was aborted"
	case failed:
		return "has failed with " + errorName(r.Status.AsyncError)
	}
	return ""
}

// errorName returns what NCCL calls an error.
func errorName(n int) string {
	names := []string{
		1: "a CUDA error", 2: "a system error", 3: "an internal error", 4: "an invalid argument",
		5: "an invalid usage", 6: "a remote error",
	}
	if n > 0 && n < len(names) {
		return names[n]
	}
	return fmt.Sprintf("error %d", n)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
