// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
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

// Words says what the error means; fatal is false if a GPU survives it, or that is not known.
func (x Xid) Words() (words string, fatal bool) {
	words, fatal = fatalXids[x.Number]
	return words, fatal
}

// gpuErrors returns what the kernel's log tells of GPUs since the first rank was started.
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
		e.Words, e.Fatal = x.Words()
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
