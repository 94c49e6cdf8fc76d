// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/numabind"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/launch"
)

// Options are what the command line asks for.
type Options struct {
	launch.Config
	Help, DryRun, JSON bool
	// NoLive turns the live view off.
	NoLive bool
	// FirstCode says that the exit code is that of the first failure.
	FirstCode bool
	// Report is the file for the report, or "".
	Report string
	// ShortReport says that the report is a text of at most 4,096 bytes, which is what Kubernetes keeps of a termination message.
	ShortReport bool
	// RankPrefix is auto, always or never.
	RankPrefix string
	// Notes say what was decided for the user.
	Notes []string
}

// System is what the options depend on beside the arguments.
type System struct {
	Lookup func(string) (string, bool)
	// GPUs counts the accelerators of this host.
	GPUs func() int
	// Devices asks PyTorch for the number of accelerators of another kind, with this interpreter, "" for the default; nil knows none.
	Devices func(ctx context.Context, python, kind string) (int, error)
	// ReadSecret reads the file of a token, and reports whether other users of this host can; see the function of that name.
	ReadSecret func(string) (text string, others bool, err error)
	// ReadFile reads the file of --file.
	ReadFile func(string) ([]byte, error)
}

// Parse reads a command line. The end of ctx ends a question to PyTorch.
func Parse(ctx context.Context, args []string, sys System) (Options, error) {
	o := Options{RankPrefix: "auto"}
	o.Nodes.Min, o.Nodes.Max = 1, 1
	v, program, err := scan(args)
	if err != nil {
		return o, err
	}
	if v["help"] != "" {
		o.Help = true
		return o, nil
	}
	from := sources{}
	file, err := v.fromFile(sys, program, from)
	if err != nil {
		return o, err
	}
	if err := v.fromEnvironment(sys.Lookup, from); err != nil {
		return o, err
	}
	if err := v.refused(); err != nil {
		return o, from.named(err)
	}
	if err := o.schedule(variables{v, from, sys.Lookup}); err != nil {
		return o, err
	}
	o.Program = program
	if len(program) == 0 && file == nil {
		return o, errors.New("the program is missing: cohort run [OPTIONS] PROGRAM [ARGUMENTS]")
	}
	if err := o.roles(ctx, file, v["file"], sys); err != nil {
		return o, err
	}
	return o, from.named(o.how(v), o.size(ctx, v, sys), o.meeting(v), o.protection(v, sys), o.times(v, sys), o.logs(v, sys), o.rest(v))
}

// refused says no to what cannot work without Python inside the launcher.
func (v values) refused() error {
	switch {
	case v["logs-specs"] != "":
		return errors.New(
			"--logs-specs names a Python class inside PyTorch's launcher and is not supported: --log-dir, --tee and --redirects are")
	case v["print-completion"] != "":
		return errors.New("--print-completion: use \"cohort completion\"")
	}
	return nil
}

func (o *Options) how(v values) error {
	o.PassLocalRank = v["pass-local-rank"] != "" && v["use-env"] == ""
	switch {
	case o.PassLocalRank && v["no-python"] != "":
		return errors.New("--pass-local-rank and --no-python exclude each other, as in torch.distributed.launch")
	case v["run-path"] != "":
		o.How = launch.RunPath // as in torchrun, whatever else is given
	case v["module"] != "" && v["no-python"] != "":
		return errors.New("--module and --no-python exclude each other")
	case v["module"] != "":
		o.How = launch.Module
	case v["no-python"] != "":
		o.How = launch.Executable
	}
	o.Python = v["python"]
	return nil
}

// Range reads the value of an option that is N or MIN:MAX.
func Range(name, text string) (least, most int, err error) {
	low, high, ranged := strings.Cut(text, ":")
	least, err1 := strconv.Atoi(low)
	most, err2 := least, error(nil)
	if ranged {
		most, err2 = strconv.Atoi(high)
	}
	if err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("--%s %s: it must be N or MIN:MAX", name, text)
	}
	if least < 1 || most < least {
		return 0, 0, fmt.Errorf("--%s %s: MIN must be at least 1 and at most MAX", name, text)
	}
	return least, most, nil
}

func (o *Options) size(ctx context.Context, v values, sys System) error {
	if text := v["nnodes"]; text != "" {
		var err error
		if o.Nodes.Min, o.Nodes.Max, err = Range("nnodes", text); err != nil {
			return err
		}
	}
	var err error
	if text := v["members"]; text != "" {
		if o.Members.Min, o.Members.Max, err = Range("members", text); err != nil {
			return err
		}
	}
	if o.MaxRestarts, err = v.count("max-restarts", 0); err != nil {
		return err
	}
	if len(o.Roles) == 0 {
		if o.Workers, err = o.workers(ctx, v["nproc-per-node"], sys); err != nil {
			return fmt.Errorf("--nproc-per-node %w", err)
		}
		return nil
	}
	for _, r := range o.Roles {
		o.Workers += r.Workers
	}
	return nil
}

// device is what the name of a kind of devices looks like: xpu, or one that an extension of PyTorch has given to its own.
var device = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func (o *Options) workers(ctx context.Context, text string, sys System) (int, error) {
	gpus := 0
	if text == "auto" || text == "gpu" || text == "cuda" {
		gpus = sys.GPUs()
	}
	switch text {
	case "":
		return 1, nil
	case "cpu":
		return runtime.NumCPU(), nil
	case "gpu", "cuda":
		if gpus == 0 {
			return 0, errors.New("gpu: this host has no GPU")
		}
		return gpus, nil
	case "auto":
		if gpus > 0 {
			o.note("%d workers: one for each GPU", gpus)
			return gpus, nil
		}
		o.note("%d workers: one for each CPU, as this host has no GPU", runtime.NumCPU())
		return runtime.NumCPU(), nil
	}
	n, err := strconv.Atoi(text)
	if err != nil && sys.Devices != nil && device.MatchString(text) {
		n, err = sys.Devices(ctx, o.Python, text)
		switch {
		case errors.Is(err, context.Canceled):
			return 0, fmt.Errorf("%s: %w", text, err)
		case err != nil:
			return 0, fmt.Errorf("%s: it must be a number, auto, cpu, gpu or a device of PyTorch; %w", text, err)
		}
		o.note("%d workers: one for each device of kind %s", n, text)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: it must be a number, auto, cpu, gpu or a device of PyTorch", text)
	}
	if n < 1 || n > 1<<16 {
		return 0, fmt.Errorf("%d: it must be at least 1 and at most %d", n, 1<<16)
	}
	return n, nil
}

func (o *Options) times(v values, sys System) error {
	name, grace := "--shutdown-timeout", v["shutdown-timeout"]
	if grace == "" {
		name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
		grace, _ = sys.Lookup(name)
	}
	var err error
	if o.Grace, err = seconds(name, grace); err != nil {
		return err
	}
	if text := v["culprit-timeout"]; text != "" {
		if o.Linger, err = seconds("--culprit-timeout", text); err != nil {
			return err
		}
		if o.Linger == 0 {
			o.Linger = -1
		}
	}
	if o.Hang.Timeout, err = seconds("--hang-timeout", v["hang-timeout"]); err != nil {
		return err
	}
	switch v["on-hang"] {
	case "", "report":
	case "kill":
		o.Hang.Kill = true
	default:
		return fmt.Errorf("--on-hang %s: it must be report or kill", v["on-hang"])
	}
	if _, err := seconds("--monitor-interval", v["monitor-interval"]); err != nil {
		return err
	}
	if m := v["start-method"]; m != "" && m != "spawn" && m != "fork" && m != "forkserver" {
		return fmt.Errorf("--start-method %s: it must be spawn, fork or forkserver", m)
	}
	o.SignalNames = v["signals-to-handle"]
	return nil
}

// seconds reads a number of seconds, as torchrun takes it, or a duration with a unit. 0 means the default where a default exists, so
// it becomes a nanosecond.
func seconds(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if d, failed := time.ParseDuration(text); failed == nil {
		f, err = d.Seconds(), nil
	}
	if err != nil || f < 0 || f > 1e8 || math.IsNaN(f) {
		return 0, fmt.Errorf("%s %s: it must be a number of seconds, or a duration such as 90s or 2m", name, text)
	}
	return max(1, time.Duration(f*float64(time.Second))), nil
}

func (o *Options) logs(v values, sys System) error {
	var err error
	if o.Logs.Redirects, err = launch.ParseStd(v["redirects"]); err != nil {
		return fmt.Errorf("--redirects: %w", err)
	}
	if o.Logs.Tee, err = launch.ParseStd(v["tee"]); err != nil {
		return fmt.Errorf("--tee: %w", err)
	}
	o.Logs.Dir = v["log-dir"]
	if o.Logs.Prefix = v["log-line-prefix-template"]; o.Logs.Prefix == "" {
		o.Logs.Prefix, _ = sys.Lookup("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
	}
	if text := v["local-ranks-filter"]; text != "" {
		o.Logs.ShowRanks = []int{}
		for part := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(part))
			if err != nil || n < 0 || n >= o.Workers {
				return fmt.Errorf("--local-ranks-filter %s: %q is not a local rank of this node", text, part)
			}
			o.Logs.ShowRanks = append(o.Logs.ShowRanks, n)
		}
	}
	o.Logs.StdoutFilters = commaList(v["duplicate-stdout-filters"])
	o.Logs.StderrFilters = commaList(v["duplicate-stderr-filters"])
	return nil
}

// commaList splits at commas; two of them are one that belongs to the text.
func commaList(text string) []string {
	var all []string
	item := ""
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] != ',':
			item += string(text[i])
		case i+1 < len(text) && text[i+1] == ',':
			item += ","
			i++
		default:
			all = append(all, item)
			item = ""
		}
	}
	all = append(all, item)
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// terminationLog is where Kubernetes looks for the reason of a container's end.
const terminationLog = "/dev/termination-log"

func (o *Options) rest(v values) error {
	o.DryRun, o.JSON, o.NoShim, o.VirtualLocalRank = v["dry-run"] != "", v["json"] != "", v["no-shim"] != "", v["virtual-local-rank"] != ""
	o.NoLive = v["no-live"] != ""
	o.EvidenceDir, o.Report = v["evidence"], v["report"]
	if o.EvidenceDir == "-" {
		o.EvidenceDir, o.NoEvidence = "", true
	}
	switch form := v["report-form"]; form {
	case "":
		o.ShortReport = o.Report == terminationLog
	case "json", "short":
		o.ShortReport = form == "short"
	default:
		return fmt.Errorf("--report-form %s: it must be json or short", form)
	}
	switch v["exit-code"] {
	case "", "1":
	case "first":
		o.FirstCode = true
	default:
		return fmt.Errorf("--exit-code %s: it must be 1 or first", v["exit-code"])
	}
	if p := v["prefix"]; p != "" {
		if p != "auto" && p != "always" && p != "never" {
			return fmt.Errorf("--prefix %s: it must be auto, always or never", p)
		}
		o.RankPrefix = p
	}
	o.NUMABinding, o.Backend = v["numa-binding"], cmp.Or(v["rdzv-backend"], "static")
	if v["standalone"] != "" {
		o.Backend = "c10d" // as torchrun has it
	}
	switch h := v["event-log-handler"]; h {
	case "", "null", "dynamic_rendezvous": // the last one writes nothing in PyTorch either
	case "console":
		o.Events = true
	default:
		return fmt.Errorf(
			"--event-log-handler %s is not supported: a handler of another package needs Python inside the launcher; console and "+
				"null work", h)
	}
	var err error
	if o.AllowUIDs, err = peeruid.Parse(v["allow-uid"]); err != nil {
		return fmt.Errorf("--allow-uid %s: %w", v["allow-uid"], err)
	}
	if b := o.NUMABinding; b != "" && !slices.Contains(numabind.Modes, b) {
		return fmt.Errorf("--numa-binding %s: it must be one of %s", b, strings.Join(numabind.Modes, ", "))
	}
	return nil
}

func (v values) count(name string, otherwise int) (int, error) {
	text := v[name]
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("--%s %s: it must be a number that is not negative", name, text)
	}
	return n, nil
}
