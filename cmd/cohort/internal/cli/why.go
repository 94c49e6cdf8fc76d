// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/internal/diagnose/jobdoc"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/launch"
)

func (a *app) whyCommand() *cobra.Command {
	var addr string
	var apart time.Duration
	cmd := &cobra.Command{
		Use:   "why [JOB | BUNDLE | DUMPS...]",
		Short: "Say in one sentence why a job hangs",
		Long: strings.TrimSpace(`
Inspect the ranks of a job and say which one the others wait for, what it is doing
instead, and since when, followed by the evidence. The job needs no preparation: the
Python stacks of its processes are read from outside, without stopping them.

Without an argument all jobs on this host are inspected, no matter what started them: cohort,
torchrun, a script that sets RANK and MASTER_ADDR, or a program that starts its ranks
itself, with torch.multiprocessing. JOB is the id or the store address that "cohort ps"
shows, or the process id of a rank or of such a program. BUNDLE is a folder of evidence from "cohort run". DUMPS
are flight recorder dumps, of PyTorch (pickle or JSON; gloo or NCCL) or of cohort, one
file per rank, or a folder of them.

--addr is for a job without ranks on this host: its store knows who waits for which
key, and ranks that run PyTorch's debug server are asked for their flight recorders.`),
		Example: strings.Trim(`
  cohort why
  cohort why 127.0.0.1:29500
  cohort why $(pgrep -of train.py)
  cohort why --addr node0:29500
  cohort why dumps/
  cohort why --json | jq -r .job.verdict.sentence`, "\n"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && addr == "" && exists(args[0]) {
				return a.whyFiles(args)
			}
			switch {
			case addr != "" && len(args) > 0:
				return command.Usage(errors.New("give either a job or --addr"))
			case len(args) > 1:
				return command.Usage(fmt.Errorf("%q is neither a file nor the only argument", args[0]))
			case addr != "":
				full, err := command.StoreAddr(addr, a.Getenv)
				if err != nil {
					return err
				}
				return a.whyStore(cmd.Context(), full, apart)
			}
			return a.whyJobs(cmd.Context(), args, apart)
		},
	}
	cmd.Flags().StringVar(&addr, "addr", "", "the address of the job's store, HOST:PORT")
	cmd.Flags().DurationVar(&apart, "apart", 500*time.Millisecond, "time between the two inspections that show which ranks make progress")
	return cmd
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// namedJobs returns the jobs on this host that args name; all without args.
func namedJobs(ctx context.Context, args []string) ([]jobscan.Job, error) {
	all := jobscan.Find(ctx)
	if len(args) == 0 {
		if len(all) == 0 {
			return nil,
				fmt.Errorf(
					"%w: no process on this host has RANK and WORLD_SIZE in its environment or was started by torch.multiprocessing "+
						"as a rank, as far as this user may see", cohort.NotFound)
		}
		return all, nil
	}
	var found []jobscan.Job
	for _, j := range all {
		match := j.ID == args[0] || sameStore(j.Store, args[0])
		for _, r := range j.Ranks {
			match = match || strconv.Itoa(r.PID) == args[0]
		}
		if match {
			found = append(found, j)
		}
	}
	if pid, err := strconv.Atoi(args[0]); err == nil && len(found) == 0 {
		if j, ok := jobscan.Spawned(ctx, pid); ok {
			return []jobscan.Job{j}, nil
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: no job %q on this host; \"cohort ps\" lists them", cohort.NotFound, args[0])
	}
	return found, nil
}

// sameStore reports whether two addresses mean one store: they are equal, or name this host in two ways.
func sameStore(a, b string) bool {
	if a == b {
		return true
	}
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil && portA == portB && isLoopback(hostA) && isLoopback(hostB)
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func (a *app) whyJobs(ctx context.Context, args []string, apart time.Duration) error {
	found, release, err := a.jobs(ctx, args)
	defer release()
	if errors.Is(err, cohort.NotFound) && len(args) == 1 && strings.ContainsRune(args[0], os.PathSeparator) {
		return fmt.Errorf("%w: no file or folder %s, and no job with this id on this host", cohort.NotFound, args[0])
	}
	if err != nil {
		return err
	}
	for _, j := range found {
		if err := a.printWhy(jobdoc.Live, j.ID, jobscan.Look(ctx, j, apart)); err != nil {
			return err
		}
	}
	return nil
}

// storePatience is how long "why" and "trace" try to reach the store of a job.
const storePatience = 5 * time.Second

// whyStore explains a job by its store where its ranks are not on this host.
func (a *app) whyStore(ctx context.Context, addr string, apart time.Duration) error {
	found, release, err := a.jobs(ctx, []string{addr})
	defer release()
	if err == nil && len(found) == 1 {
		return a.printWhy(jobdoc.Live, found[0].ID, jobscan.Look(ctx, found[0], apart))
	}
	limited, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	client, err := a.DialStore(limited, addr)
	if err != nil {
		return fmt.Errorf("no job on this host has the store %s, and it cannot be asked: %w", addr, command.Explain(ctx, err))
	}
	defer func() { _ = client.Close() }()
	return a.printWhy(jobdoc.Store, addr, jobscan.AskStore(ctx, client))
}

// whyFiles explains a bundle or dumps.
func (a *app) whyFiles(args []string) error {
	if report := filepath.Join(args[0], "report.json"); len(args) == 1 && exists(report) {
		b, err := os.ReadFile(report) //nolint:gosec // the user's own file
		if err != nil {
			return err
		}
		var r launch.Report
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("%s: %w", report, err)
		}
		return a.printBundle(&r)
	}
	seen, err := readTorchDumps(args)
	if err == nil {
		return a.printWhy(jobdoc.Dumps, "", seen)
	}
	if dumps, own := a.readDumps(args); own == nil {
		return a.printDumps(flightrec.Analyze(dumps))
	}
	return err
}

// rankNumber is the last number of a file name: "nccl_trace_rank_3", "rank3.json".
var rankNumber = regexp.MustCompile(`(\d+)\D*$`)

// readTorchDumps reads the flight recorder dumps of PyTorch.
func readTorchDumps(args []string) (verdict.Job, error) {
	var names []string
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return verdict.Job{}, err
		}
		if !info.IsDir() {
			names = append(names, arg)
			continue
		}
		entries, err := os.ReadDir(arg)
		if err != nil {
			return verdict.Job{}, err
		}
		for _, e := range entries {
			if !e.IsDir() {
				names = append(names, filepath.Join(arg, e.Name()))
			}
		}
	}
	ranks := map[int]verdict.Rank{}
	var errs []error
	for _, name := range names {
		b, err := os.ReadFile(name) //nolint:gosec // the user's own file
		if err != nil {
			return verdict.Job{}, err
		}
		m := rankNumber.FindStringSubmatch(filepath.Base(strings.TrimSuffix(name, filepath.Ext(name))))
		if m == nil {
			m = rankNumber.FindStringSubmatch(filepath.Base(name))
		}
		d, err := torchdump.Parse(b)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		case m == nil:
			errs = append(errs, fmt.Errorf("%s: the name of a dump must end with the rank's number", name))
		default:
			rank, _ := strconv.Atoi(m[1])
			if old, found := ranks[rank]; !found || len(d.Entries) >= len(old.Dump.Entries) && hasLines(d) {
				ranks[rank] = verdict.Rank{
					Rank: rank, Trouble: fmt.Sprintf("%d operations recorded", len(d.Entries)),
					Process: verdict.Process{State: "S"}, Records: verdict.Records{Dump: d},
				}
			}
		}
	}
	var job verdict.Job
	for _, r := range ranks {
		job.Ranks = append(job.Ranks, r)
	}
	switch {
	case len(job.Ranks) > 0:
		return job, nil
	case len(errs) > 0:
		return job, errs[0]
	}
	return job, fmt.Errorf("%w: no flight recorder dump in %s", cohort.NotFound, strings.Join(args, ", "))
}

// hasLines reports whether a dump knows source lines: of a pickle and a JSON file of one rank the pickle is taken.
func hasLines(d *torchdump.Dump) bool {
	return len(d.Entries) > 0 && d.Entries[len(d.Entries)-1].Where != ""
}
