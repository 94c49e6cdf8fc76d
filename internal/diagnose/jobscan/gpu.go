// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/ncclras"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
)

// Xid is an error of a GPU, as NVIDIA's driver has logged it.
type Xid struct {
	// Device is its PCI address: "0000:3b:00".
	Device string
	Number int
	// PID is the process that used the GPU, in the numbers of the host; 0: not known.
	PID int
	// At is when it was, since the machine was started.
	At time.Duration
	// Text is the rest of the driver's message.
	Text string
}

var (
	xidLine = regexp.MustCompile(`NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?$`)
	xidPID  = regexp.MustCompile(`^pid='?(\d+|<unknown>)'?(?:, name=[^,]*)?(?:, )?`)
)

// Xids finds the errors of GPUs in records of the kernel's log as /dev/kmsg has them: "priority,number,microseconds,flags;text".
func Xids(records []string) []Xid {
	var all []Xid
	for _, record := range records {
		head, text, found := strings.Cut(record, ";")
		if !found {
			continue
		}
		text, _, _ = strings.Cut(text, "\n") // more lines hold the name of the device
		m := xidLine.FindStringSubmatch(text)
		fields := strings.Split(head, ",")
		if m == nil || len(fields) < 3 {
			continue
		}
		number, err := strconv.Atoi(m[2])
		micros, failed := strconv.ParseInt(fields[2], 10, 64)
		if err != nil || failed != nil {
			continue
		}
		x := Xid{Device: m[1], Number: number, At: time.Duration(micros) * time.Microsecond, Text: m[3]}
		if p := xidPID.FindStringSubmatch(x.Text); p != nil {
			x.PID, _ = strconv.Atoi(p[1])
			x.Text = x.Text[len(p[0]):]
		}
		all = append(all, x)
	}
	return all
}

// fatalXids say in words what errors after which a GPU, or what runs on it, does not go on. Others are noted by the driver and survived.
var fatalXids = map[int]string{
	13: "a kernel of the program has failed on it", 31: "the program accessed an invalid address on it", 45: "what ran on it was stopped",
	48: "its memory has an error that cannot be corrected", 74: "its NVLink has failed", 79: "it has fallen off the bus",
	94: "its memory has an error that cannot be corrected", 95: "its memory has an error that cannot be corrected",
	119: "its own processor (GSP) does not answer", 120: "its own processor (GSP) has failed",
}

// Meaning says what the error means; fatal is false if a GPU survives it, or that is not known.
func (x Xid) Meaning() (text string, fatal bool) {
	text, fatal = fatalXids[x.Number]
	return text, fatal
}

// gpuErrors returns what the kernel's log reports of GPUs since the first rank was started.
func gpuErrors(log, host string, ranks []verdict.Rank) (all []verdict.GPUError) {
	begun, known := time.Duration(0), false
	for _, r := range ranks {
		if start, ok := startOf(r.PID); ok && (!known || start < begun) {
			begun, known = start, true
		}
	}
	now := sinceBoot()
	if !known || now == 0 {
		return nil
	}
	for _, x := range Xids(ReadKernelLog(log)) {
		if x.At < begun {
			continue
		}
		e := verdict.GPUError{Host: host, Device: x.Device, Number: x.Number, Rank: -1, Age: max(0, now-x.At)}
		e.Words, e.Fatal = x.Meaning()
		if !e.Fatal {
			e.Words = x.Text
		}
		for _, r := range ranks {
			if x.PID != 0 && r.PID == x.PID {
				e.Rank = r.Rank
			}
		}
		all = append(all, e)
	}
	return all
}

const (
	// ncclTime bounds the question to NCCL: its network takes some seconds to give up a process that does not answer.
	ncclTime = 8 * time.Second
	// restTime is what is left of the caller's time, for the rest of the answer.
	restTime = 1500 * time.Millisecond
	// maxAsks is how often NCCL is asked. The processes of all jobs of a host share a port, and the kernel chooses one that answers.
	maxAsks = 8
	// Lines of NCCL, and their bytes: they travel from node to node. With the line that counts the others they are as many as a proof has.
	maxNCCLLines = 15
	maxNCCLBytes = 512
)

// ncclEvidence is what NCCL's own network says of the communicators of a job: lines, and who has started what.
type ncclEvidence struct {
	lines         []string
	communicators []verdict.Communicator
}

// askNCCL asks NCCL's own network about the communicators of ranks that use it. The first rank that does knows where it answers; it
// answers for all.
func askNCCL(ctx context.Context, j Job) ncclEvidence {
	pids := map[int]int{} // ranks by process, as NCCL knows it
	addr := ""
	for _, r := range j.Ranks {
		pid := ownPID("/proc", r.PID)
		if _, twice := pids[pid]; twice { // in another container
			pids[pid] = -1
		} else {
			pids[pid] = r.Rank
		}
		// Only a process with a GPU has communicators. To look for the library costs more.
		if addr == "" && (r.env["NCCL_RAS_ADDR"] != "" || usesGPU("/proc", r.PID)) && portowner.Loaded(r.PID, "/libnccl") {
			addr = cmp.Or(r.env["NCCL_RAS_ADDR"], ncclras.DefaultAddr)
		}
	}
	if addr == "" {
		return ncclEvidence{}
	}
	limit := ncclTime
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)-restTime)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	report := &ncclras.Report{}
	for range maxAsks {
		answer := j.ask(ctx, question{What: askRAS, Addr: addr})
		if answer.Report == nil {
			break
		}
		report = answer.Report
		report.Text = answer.RASText
		if report.Of(slices.Collect(maps.Keys(pids))); len(report.Communicators) > 0 || report.Text != nil {
			break
		}
	}
	evidence := ncclEvidence{lines: boundedLines(report.Lines())}
	for _, c := range report.Communicators {
		if started := startedBy(c, j.World, pids, isLocal); len(started) > 1 && len(evidence.communicators) < maxNCCLLines {
			evidence.communicators = append(evidence.communicators, verdict.Communicator{Size: c.Size, Started: started})
		}
	}
	return evidence
}

// startedBy returns what the ranks of a communicator have started, those of the job that started the same together; nil if they are not
// known. pids are the ranks of this host by process, -1 where several have the same number; local tells its addresses. A communicator of
// all ranks has them in the order of the job.
func startedBy(c ncclras.Communicator, world int, pids map[int]int, local func(host string) bool) []verdict.Started {
	whole, known := c.Size == world, map[int]bool{}
	for _, r := range c.Ranks {
		rank, found := pids[r.PID]
		if found && rank >= 0 && (whole && rank == r.Rank || !whole && local(r.Host)) {
			known[rank] = true
		}
	}
	if !whole && len(known) < len(c.Ranks) || whole && len(known) < min(len(pids), len(c.Ranks)) {
		return nil
	}
	var all []verdict.Started
	for _, r := range c.Ranks {
		rank := r.Rank
		if !whole {
			rank = pids[r.PID]
		}
		counts := maps.Clone(r.Counts)
		maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
		i := slices.IndexFunc(all, func(s verdict.Started) bool { return maps.Equal(s.Counts, counts) })
		if i < 0 {
			all, i = append(all, verdict.Started{Counts: counts}), len(all)
		}
		all[i].Ranks = append(all[i].Ranks, rank)
	}
	return all
}

// isLocal reports whether a host, which NCCL names by its address, is this one.
func isLocal(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ctxdial.OwnAddress(ip)
}

// boundedLines returns the first of lines, none of them long, and says how many there are besides.
func boundedLines(lines []string) []string {
	more := len(lines) - maxNCCLLines
	if more > 0 {
		lines = lines[:maxNCCLLines]
	}
	for i, line := range lines {
		if len(line) > maxNCCLBytes {
			lines[i] = strings.ToValidUTF8(line[:maxNCCLBytes], "") + "..."
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("NCCL: and %d more", more))
	}
	return lines
}
