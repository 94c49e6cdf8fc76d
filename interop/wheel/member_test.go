// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package wheel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// member does in Go what testdata/member.py does in Python.
func member(ctx context.Context, steps int) error {
	s, err := tcpstore.Dial(ctx, net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")))
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	m, err := elastic.Join(ctx, s, elastic.WithEnvID())
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	for now := int64(0); ; {
		g, err := m.Group(ctx, s, group.WithTimeout(2*time.Minute))
		if errors.Is(err, cohort.Closed) {
			return nil
		}
		if err != nil {
			return err
		}
		if now, err = count(ctx, m, g, now, int64(steps)); err != nil {
			fmt.Printf("member %v: %v\n", m.ID(), err)
			continue
		}
		if now >= int64(steps) {
			fmt.Printf("member %v done\n", m.ID())
			return m.Done(ctx)
		}
	}
}

// count takes over the step of the member that is furthest and counts until the round or the job is over.
func count(ctx context.Context, m *elastic.Member, g *group.Group, now, steps int64) (int64, error) {
	furthest := []int64{now}
	if err := group.AllReduceSlice(ctx, g, furthest, group.Max); err != nil {
		return now, err
	}
	now = furthest[0]
	fmt.Printf("member %v (process %d): rank %d of %d at step %d\n", m.ID(), os.Getpid(), g.Rank(), g.Size(), now)
	for now < steps {
		over, err := m.Over(ctx)
		if err != nil {
			return now, err
		}
		sums := []float32{0, 1}
		if over {
			sums[0] = 1
		}
		if err = group.AllReduceSlice(ctx, g, sums, group.Sum); err != nil {
			return now, err
		}
		if int(sums[1]) != g.Size() {
			return now, fmt.Errorf("the sum of ones is %v of %d", sums[1], g.Size())
		}
		if now++; now%20 == 0 {
			fmt.Printf("member %v: step %d\n", m.ID(), now)
		}
		if sums[0] > 0 {
			return now, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return now, nil
}

// memberArgument makes the test binary a member.
const memberArgument = "member-of-a-job"

func runMember(args []string) {
	steps, err := strconv.Atoi(args[0])
	if err == nil {
		err = member(context.Background(), steps)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
