// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package runflags reads the command line of "cohort run": torchrun's options with dashes or underscores, any unique
// prefix of them, their PET_ variables, and our own. It is pure: it takes arguments and a function that looks up the
// environment, and returns options.
package runflags

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sort"
	"strings"
)

// option describes an option.
type option struct {
	name  string // with dashes
	short byte   // one letter, or 0
	flag  bool   // takes no value
	own   bool   // not torchrun's
	env   bool   // PET_NAME gives its default
	usage string
	arg   string
}

// options are all options: those of torchrun first, of all its versions.
var options = []option{
	{name: "nnodes", env: true, arg: "N|MIN:MAX", usage: "number of nodes"},
	{name: "nproc-per-node", env: true, arg: "N|auto|cpu|gpu|xpu", usage: "workers on each node"},
	{name: "rdzv-backend", env: true, arg: "NAME", usage: "static or c10d; both mean cohort's own rendezvous"},
	{name: "rdzv-endpoint", env: true, arg: "HOST[:PORT]", usage: "where the nodes meet"},
	{name: "rdzv-id", env: true, arg: "ID", usage: "name of the job"},
	{name: "rdzv-conf", env: true, arg: "K=V,...", usage: "join_timeout (or timeout, with --master-addr), last_call_timeout and others"},
	{name: "standalone", flag: true, env: true, usage: "a job on this host only"},
	{name: "max-restarts", env: true, arg: "N", usage: "restarts after a failure"},
	{name: "monitor-interval", env: true, arg: "SECONDS", usage: "accepted; failures are noticed at once"},
	{name: "start-method", env: true, arg: "NAME", usage: "accepted; every worker is a new process"},
	{name: "event-log-handler", env: true, arg: "NAME", usage: "console prints events as JSON on stderr, null none"},
	{name: "role", env: true, arg: "NAME", usage: "role of the workers"},
	{name: "module", short: 'm', flag: true, env: true, usage: "the program is a Python module"},
	{name: "no-python", flag: true, env: true, usage: "execute the program itself"},
	{name: "run-path", flag: true, env: true, usage: "run the script with Python's runpy.run_path; its folder is not added to sys.path"},
	{name: "log-dir", env: true, arg: "DIR", usage: "folder of log files"},
	{
		name: "redirects", short: 'r', env: true, arg: "STD",
		usage: "streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:STD,...",
	},
	{name: "tee", short: 't', env: true, arg: "STD", usage: "streams that go to files and to the screen"},
	{
		name: "log-line-prefix-template", env: true, arg: "TEXT",
		usage: "prefix of teed lines: ${role_name} ${local_rank} ${rank} ${hostname}",
	},
	{name: "local-ranks-filter", env: true, arg: "RANKS", usage: "show only these local ranks"},
	{name: "duplicate-stdout-filters", env: true, arg: "TEXT,...", usage: "copy teed lines with one of these texts to filtered_stdout.log"},
	{name: "duplicate-stderr-filters", env: true, arg: "TEXT,...", usage: "the same for stderr"},
	{name: "node-rank", env: true, arg: "N", usage: "number of this node"},
	{name: "master-addr", env: true, arg: "HOST", usage: "where the workers find the store"},
	{name: "master-port", env: true, arg: "PORT", usage: "its port; default: a free one"},
	{name: "local-addr", env: true, arg: "HOST", usage: "address at which other nodes reach this one, if it hosts the store"},
	{
		name: "token-file", own: true, arg: "FILE",
		usage: "the job's token, the same on all nodes (\"cohort token new\"; default: COHORT_TOKEN_FILE, COHORT_TOKEN)",
	},
	{name: "tls-cert", own: true, arg: "FILE", usage: "certificate of this launcher, of your own PKI, in place of a token"},
	{name: "tls-key", own: true, arg: "FILE", usage: "its key"},
	{name: "tls-ca", own: true, arg: "FILE", usage: "the authorities whose certificates are accepted"},
	{
		name: "insecure-plaintext", flag: true, own: true,
		usage: "launchers of several nodes meet, and their store is used, without TLS: trust the network",
	},
	{name: "allow-uid", arg: "UID,...", usage: "users of this host who may connect to the job, beside you and root"},
	{name: "logs-specs", arg: "NAME", usage: "refused: it needs Python inside the launcher"},
	{name: "numa-binding", arg: "MODE", usage: "bind workers to processors near their GPU: node, socket, exclusive, core-complex"},
	{name: "signals-to-handle", env: true, arg: "NAMES", usage: "signals that stop the job; others are passed on"},
	{name: "shutdown-timeout", env: true, arg: "SECONDS", usage: "time between the signal that stops a worker and SIGKILL"},
	{name: "virtual-local-rank", flag: true, env: true, usage: "LOCAL_RANK=0 and one visible device for every worker"},
	{name: "print-completion", arg: "SHELL", usage: "refused: \"cohort completion\" does that"},
	{name: "use-env", flag: true, usage: "as in torch.distributed.launch: do not pass --local-rank to the program; this is the default"},

	{name: "file", short: 'f', own: true, arg: "FILE", usage: "a job with several roles, described in YAML, instead of PROGRAM"},
	{
		name: "members", own: true, arg: "[MIN:]MAX",
		usage: "size of a group that is reconfigured when a worker dies; the other workers are spares, and workers are not restarted",
	},
	{name: "dry-run", flag: true, own: true, usage: "print what would be done"},
	{
		name: "exit-code", own: true, arg: "1|first",
		usage: "exit code of a failed job: 1, or that of the first failure (128+N for signal N)",
	},
	{
		name: "pass-local-rank", flag: true, own: true,
		usage: "pass --local-rank=N to the program, as torch.distributed.launch does without --use-env",
	},
	{name: "python", own: true, arg: "PROGRAM", usage: "the interpreter (default: PYTHON_EXEC, or python3)"},
	{name: "no-shim", flag: true, own: true, usage: "do not load the shim into Python workers; rank 0 hosts their store"},
	{name: "evidence", own: true, arg: "DIR|-", usage: "folder for the evidence of failures; - for none"},
	{
		name: "culprit-timeout", own: true, arg: "SECONDS",
		usage: "after a failure that looks like a consequence, wait this long for its cause",
	},
	{name: "hang-timeout", own: true, arg: "SECONDS", usage: "say why the job hangs when no rank has made progress for this long"},
	{name: "on-hang", own: true, arg: "report|kill", usage: "what to do then; kill counts as a failure"},
	{name: "report", own: true, arg: "FILE", usage: "also write the report as JSON, even if the job succeeds"},
	{
		name: "report-form", own: true, arg: "json|short",
		usage: "short: at most 4096 bytes of text, the sentence first (default for /dev/termination-log)",
	},
	{name: "prefix", own: true, arg: "auto|always|never", usage: "put the rank before every line; auto: on a terminal"},
	{name: "no-live", flag: true, own: true, usage: "on a terminal, print only the output, without the state of the job below it"},
	{
		name: "json", flag: true, own: true,
		usage: "print the report as JSON on stderr, after what the workers print there; --report FILE has it alone",
	},
	{name: "help", short: 'h', flag: true, own: true, usage: "print this"},
}

// values are options with their values, by name; a flag's is "1".
type values map[string]string

// scan takes the options off the front of args. What follows the first argument that is not an option is the program's.
func scan(args []string) (values, []string, error) {
	v := values{}
	for len(args) > 0 {
		arg := args[0]
		switch {
		case arg == "--":
			return v, args[1:], nil
		case arg == "-" || !strings.HasPrefix(arg, "-"):
			return v, args, nil
		}
		args = args[1:]
		var err error
		if strings.HasPrefix(arg, "--") {
			args, err = v.long(arg[2:], args)
		} else {
			args, err = v.letters(arg[1:], args)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return v, nil, nil
}

func (v values) long(text string, rest []string) ([]string, error) {
	name, value, hasValue := strings.Cut(text, "=")
	o, err := find(name)
	if err != nil {
		return nil, err
	}
	if o.flag {
		if hasValue {
			return nil, fmt.Errorf("--%s takes no value", o.name)
		}
		v[o.name] = "1"
		return rest, nil
	}
	if !hasValue {
		if len(rest) == 0 || isOption(rest[0]) {
			return nil, fmt.Errorf("--%s needs a value: %s", o.name, o.arg)
		}
		value, rest = rest[0], rest[1:]
	}
	v[o.name] = value
	return rest, nil
}

// isOption reports whether a word is an option with its whole name, and so not the value of the one before.
func isOption(word string) bool {
	name, long := strings.CutPrefix(word, "--")
	name, _, _ = strings.Cut(strings.ReplaceAll(name, "_", "-"), "=")
	return long && slices.ContainsFunc(options, func(o option) bool { return o.name == name })
}

// letters takes "-m", "-t3", "-t 3".
func (v values) letters(text string, rest []string) ([]string, error) {
	for text != "" {
		i := slices.IndexFunc(options, func(o option) bool { return o.short == text[0] })
		if i < 0 {
			return nil, fmt.Errorf("unknown option -%c%s", text[0], near(text))
		}
		o := options[i]
		text = text[1:]
		if o.flag {
			v[o.name] = "1"
			continue
		}
		if text == "" {
			if len(rest) == 0 {
				return nil, fmt.Errorf("-%c needs a value: %s", o.short, o.arg)
			}
			text, rest = rest[0], rest[1:]
		}
		v[o.name] = strings.TrimPrefix(text, "=")
		return rest, nil
	}
	return rest, nil
}

// find returns the option with this name or unique prefix, with dashes or underscores. A prefix that is unique among
// torchrun's options means the same here, whatever we have added.
func find(name string) (option, error) {
	name = strings.ReplaceAll(name, "_", "-")
	if name == "token" {
		return option{}, errTokenValue
	}
	var ours, theirs []option
	for _, o := range options {
		switch {
		case o.name == name:
			return o, nil
		case !strings.HasPrefix(o.name, name) || name == "":
		case o.own:
			ours = append(ours, o)
		default:
			theirs = append(theirs, o)
		}
	}
	matches := theirs
	if len(theirs) == 0 {
		matches = ours
	}
	if len(matches) == 1 {
		return matches[0], nil
	}
	var names []string
	for _, o := range append(theirs, ours...) {
		names = append(names, "--"+o.name)
	}
	if len(names) == 0 {
		return option{}, fmt.Errorf("unknown option --%s%s", name, near(name))
	}
	sort.Strings(names)
	return option{}, fmt.Errorf("--%s could be %s", name, strings.Join(names, " or "))
}

// sources say which variable, or which line of a file, has set an option that was not given, by the option's name.
type sources map[string]string

// named has errors about an option begin with what has set it: a command line without "--nnodes" must not be blamed for it.
func (s sources) named(errs ...error) error {
	for i, err := range errs {
		if err == nil || !strings.HasPrefix(err.Error(), "--") {
			continue
		}
		end := strings.IndexAny(err.Error()+" ", " :")
		if source := s[err.Error()[2:end]]; source != "" {
			errs[i] = renamed{err, source + err.Error()[end:]}
		}
	}
	return errors.Join(errs...)
}

// renamed is an error with another text.
type renamed struct {
	error
	text string
}

func (r renamed) Error() string { return r.text }
func (r renamed) Unwrap() error { return r.error }

// fromEnvironment adds the PET_ variables of options that were not given.
func (v values) fromEnvironment(lookup func(string) (string, bool), from sources) error {
	var errs []error
	for _, o := range options {
		if _, given := v[o.name]; given || !o.env {
			continue
		}
		name := "PET_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
		value, found := lookup(name)
		if !found {
			continue
		}
		if o.flag {
			on, ok := new(big.Int).SetString(cmp.Or(strings.TrimSpace(value), "0"), 10) // torchrun takes any integer
			if !ok {
				errs = append(errs, fmt.Errorf("%s=%s: it must be 1 or 0", name, value))
			}
			if !ok || on.Sign() == 0 {
				continue
			}
			value = "1"
		}
		v[o.name], from[o.name] = value, name
	}
	return errors.Join(errs...)
}

// Usage returns the table of options.
func Usage() string {
	var b strings.Builder
	for _, part := range []struct {
		own   bool
		title string
	}{{false, "Options of torchrun:"}, {true, "Options of cohort:"}} {
		b.WriteString(part.title + "\n")
		for _, o := range options {
			if o.own != part.own {
				continue
			}
			left := "      --" + o.name
			if o.short != 0 {
				left = "  -" + string(o.short) + ", --" + o.name
			}
			if o.arg != "" {
				left += " " + o.arg
			}
			fmt.Fprintf(&b, "%-42s %s\n", left, o.usage)
		}
	}
	return b.String()
}

// Names returns the names of all options, for completions.
func Names() []string {
	var all []string
	for _, o := range options {
		all = append(all, "--"+o.name)
	}
	return all
}
