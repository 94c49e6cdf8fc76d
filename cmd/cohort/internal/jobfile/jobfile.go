// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package jobfile reads the description of a job with several roles, the file given to "cohort run -f".
package jobfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// File is a job.
type File struct {
	// Name is the job's id, "" for none.
	Name string `yaml:"name"`
	// Options are those of "cohort run", by their names without dashes in front.
	Options map[string]scalar `yaml:"options"`
	Roles   []role            `yaml:"roles"`

	lines map[string]int // of the options
}

// role is a part of the workers.
type role struct {
	Name string `yaml:"name"`
	// Workers is a number, or auto, cpu or gpu; "" is 1.
	Workers scalar            `yaml:"workers"`
	Program command           `yaml:"program"`
	Module  bool              `yaml:"module"`
	Python  string            `yaml:"python"`
	Dir     string            `yaml:"dir"`
	Env     map[string]scalar `yaml:"env"`
	// Line is where the role begins.
	Line int `yaml:"-"`
}

// scalar is a value as it is written: 3, true, text.
type scalar string

// UnmarshalYAML takes a scalar of any type.
func (s *scalar) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: a single value is expected here", n.Line)
	}
	*s = scalar(n.Value)
	return nil
}

// command is a program and its arguments: a list, or one word.
type command []string

// UnmarshalYAML takes a list of scalars or one.
func (w *command) UnmarshalYAML(n *yaml.Node) error {
	words := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		words = n.Content
	}
	*w = nil
	for _, word := range words {
		var s scalar
		if err := word.Decode(&s); err != nil {
			return err
		}
		if word.ShortTag() == "!!null" {
			return fmt.Errorf("line %d: a word of the program is missing here", word.Line)
		}
		*w = append(*w, string(s))
	}
	return nil
}

// MaxSize bounds a file.
const MaxSize = 1 << 20

// Parse reads the text of a file. Errors say in which line.
func Parse(data []byte) (*File, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("it has more than %d bytes", MaxSize)
	}
	var f File
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is empty")
		}
		return nil, plain(err)
	}
	if err := d.Decode(new(yaml.Node)); err == nil {
		return nil, errors.New("it holds more than one document")
	} else if !errors.Is(err, io.EOF) {
		return nil, plain(err)
	}
	f.find(data)
	if len(f.Roles) == 0 {
		return nil, errors.New("it has no roles")
	}
	for i, r := range f.Roles {
		if err := r.check(i, f.Roles[:i]); err != nil {
			return nil, fmt.Errorf("line %d: %w", r.Line, err)
		}
	}
	return &f, nil
}

// check says what is wrong with a role.
func (r role) check(i int, before []role) error {
	switch {
	case r.Name == "":
		return fmt.Errorf("role %d has no name", i+1)
	case len(r.Program) == 0 || r.Program[0] == "":
		return fmt.Errorf("role %s has no program", r.Name)
	case slices.ContainsFunc(before, func(o role) bool { return o.Name == r.Name }):
		return fmt.Errorf("two roles have the name %s", r.Name)
	}
	for name, value := range r.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(string(value), "\x00") {
			return fmt.Errorf("role %s: %q is not a valid variable name", r.Name, name)
		}
	}
	return nil
}

// find notes the lines of roles and options. The decoder has read them without.
func (f *File) find(data []byte) {
	var document yaml.Node
	if yaml.Unmarshal(data, &document) != nil || len(document.Content) == 0 {
		return
	}
	if roles := value(document.Content[0], "roles"); roles != nil {
		for i := range min(len(f.Roles), len(roles.Content)) {
			f.Roles[i].Line = roles.Content[i].Line
		}
	}
	f.lines = map[string]int{}
	if options := value(document.Content[0], "options"); options != nil {
		for i := 0; i+1 < len(options.Content); i += 2 {
			f.lines[options.Content[i].Value] = options.Content[i].Line
		}
	}
}

// value returns what a mapping has under a name, nil for nothing.
func value(mapping *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value != name {
			continue
		}
		if v := mapping.Content[i+1]; v.Kind == yaml.AliasNode {
			return v.Alias
		}
		return mapping.Content[i+1]
	}
	return nil
}

// wanted says what the decoder's types are in a file.
var wanted = map[string]string{
	"jobfile.File": "name, options and roles", "[]jobfile.role": "a list of roles", "jobfile.role": "a role: its name, program and so on",
	"map[string]jobfile.scalar": "names with values", "bool": "true or false", "string": "a single value",
}

var (
	unknownField = regexp.MustCompile(`field (.*) not found in type jobfile\.(\w+)`)
	wrongType    = regexp.MustCompile("cannot unmarshal !!\\w+ (?:`.*` )?into (\\S+)")
)

// plain rewrites an error of the decoder, which speaks of Go's types.
func plain(err error) error {
	fields := map[string]string{"File": "name, options, roles", "role": "name, workers, program, module, python, dir, env"}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	text = unknownField.ReplaceAllStringFunc(text, func(s string) string {
		m := unknownField.FindStringSubmatch(s)
		return fmt.Sprintf("%q is unknown here; the known names are %s", m[1], fields[m[2]])
	})
	text = wrongType.ReplaceAllStringFunc(text, func(s string) string {
		return "this must be " + cmp.Or(wanted[wrongType.FindStringSubmatch(s)[1]], "something else")
	})
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return errors.New(strings.Join(lines, "; "))
}

// OptionNames returns the names of the options, sorted.
func (f *File) OptionNames() []string { return slices.Sorted(maps.Keys(f.Options)) }

// OptionLine returns the line of an option.
func (f *File) OptionLine(name string) int { return f.lines[name] }

// Flag says what a value means for an option that takes none.
func (s scalar) Flag() (bool, error) {
	b, err := strconv.ParseBool(string(s))
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", string(s))
	}
	return b, nil
}
