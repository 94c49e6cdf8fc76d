// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// hops are the cases of bench/peers/autograd/torch_dist_autograd.py: how many calls are nested between two workers.
var hops = []struct {
	name  string
	depth int
}{{"hop1", 1}, {"chain8", 8}}

// startHops starts two workers.
func (a *app) startHops(ctx context.Context, m *meter) error {
	return a.runRanks(ctx, 2, nil, func(rank int, store string) []string {
		return []string{
			"autograd-rank", "--store", store, "--rank", strconv.Itoa(rank), "--peer", m.peer, "--dur", m.dur.String(),
			"--only", m.only.String(),
		}
	})
}

// hopsRankCommand is one worker of the cases over hops.
func (a *app) hopsRankCommand() *cobra.Command {
	var addr, peer, only string
	var rank int
	var dur time.Duration
	cmd := &cobra.Command{
		Use: "autograd-rank", Hidden: true, Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cases, err := regexp.Compile(only)
			if err != nil {
				return command.Usage(err)
			}
			return hopsRank(cmd.Context(), &meter{out: a.Out, group: "autograd", peer: peer, dur: dur, only: cases}, addr, rank)
		},
	}
	cmd.Flags().StringVar(&addr, "store", "", "address of the store")
	cmd.Flags().StringVar(&peer, "peer", "cohort", "the name in the column peer")
	cmd.Flags().StringVar(&only, "only", "", "run only the cases whose name matches this regular expression")
	cmd.Flags().IntVar(&rank, "rank", 0, "rank of this process")
	cmd.Flags().DurationVar(&dur, "dur", 2*time.Second, "time per case")
	return cmd
}

func hopsRank(ctx context.Context, m *meter, addr string, rank int) error {
	client, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	engine := distautograd.New()
	reg := rpc.NewRegistry().MustHandle("bench.mul",
		func(ctx context.Context, t *autograd.Variable, depth int) (*autograd.Variable, error) {
			u := t.Scale(2)
			if depth > 1 {
				self := rpc.AgentFrom(ctx)
				return rpc.Call[*autograd.Variable](ctx, self, fmt.Sprintf("w%d", 1-self.ID()), "bench.mul", u, depth-1)
			}
			return u, u.Err()
		})
	agent, err := rpc.Join(ctx, client, fmt.Sprintf("w%d", rank), rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(2),
		rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), engine.Join())
	if err != nil {
		return err
	}
	defer func() { _ = agent.Close() }()
	if rank == 0 {
		smart := *m
		smart.peer += "-smart"
		for _, h := range hops {
			if !m.wanted(h.name) {
				continue
			}
			if err := measureHops(ctx, m, engine, agent, h.name, h.depth, distautograd.Fast()); err != nil {
				return err
			}
			if err := measureHops(ctx, &smart, engine, agent, h.name, h.depth); err != nil {
				return err
			}
		}
	}
	return agent.Shutdown(ctx)
}

// measureHops measures forward, backward and clean-up of a tiny graph.
func measureHops(ctx context.Context, m *meter, engine *distautograd.Engine, agent *rpc.Agent, name string, depth int,
	opts ...distautograd.PassOption,
) error {
	once := func() error {
		ones, err := tensor.Full(tensor.Float32, 1.0, 4)
		if err != nil {
			return err
		}
		x := autograd.Parameter(ones)
		gctx, c, err := engine.Open(ctx)
		if err != nil {
			return err
		}
		y, err := rpc.Call[*autograd.Variable](gctx, agent, "w1", "bench.mul", x, depth)
		if err == nil {
			err = c.Backward(gctx, []*autograd.Variable{y.Sum()}, opts...)
		}
		if got := c.Gradient(x); err == nil && got == nil {
			err = cohort.New("bench: autograd", cohort.Internal, "no gradient came")
		}
		_ = c.Close()
		return err
	}
	var took []time.Duration
	for begun := time.Now(); len(took) < 20 || time.Since(begun) < m.dur; {
		begin := time.Now()
		if err := once(); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
	}
	took = took[min(10, len(took)/2):] // the first ones warm up
	slices.Sort(took)
	for _, q := range []int{50, 99} {
		m.emit(fmt.Sprintf("%s.p%d", name, q), micros(took[len(took)*q/100]), "us")
	}
	return nil
}
