// Judges the fenced registers of a history with Porcupine: go run . history.porcupine.json
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// One side of an operation; a fence is compared from left to right.
type side struct {
	Op, Key, Type, Err string
	Fence              [3]uint64
	Val                uint64
}

type operation struct {
	Client       int
	Input        side
	Call, Return int64
	Output       side
}

// A register remembers the highest fence that it has seen, and refuses any lower one.
type register struct {
	Highest [3]uint64
	Val     uint64
}

func less(a, b [3]uint64) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

func step(state, input, output interface{}) (bool, interface{}) {
	reg, in, out := state.(register), input.(side), output.(side)
	if less(in.Fence, reg.Highest) {
		return out.Type != "ok", reg
	}
	after := register{in.Fence, reg.Val}
	if in.Op == "write" {
		after.Val = in.Val
	}
	switch out.Type {
	case "ok":
		return in.Op == "write" || out.Val == reg.Val, after
	case "info": // It may happen at any time until the end, or never.
		return true, after
	}
	return false, reg // A refusal of a fence that is high enough.
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . history.porcupine.json")
		os.Exit(2)
	}
	var all []operation
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	registers := map[string][]porcupine.Operation{}
	for _, op := range all {
		isRegister := op.Input.Op == "read" || op.Input.Op == "write"
		// A failure other than a refusal certainly never came to the register.
		isGone := op.Output.Type == "fail" && !strings.HasPrefix(op.Output.Err, "refused")
		if isRegister && !isGone {
			registers[op.Input.Key] = append(registers[op.Input.Key], porcupine.Operation{
				ClientId: op.Client, Input: op.Input, Call: op.Call, Output: op.Output, Return: op.Return})
		}
	}
	if len(registers) == 0 {
		fmt.Fprintln(os.Stderr, "the history has no register")
		os.Exit(2)
	}
	keys := []string{}
	for key := range registers {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	code := 0
	model := porcupine.Model{Init: func() interface{} { return register{} }, Step: step}
	for _, key := range keys {
		ops := registers[key]
		result := porcupine.CheckOperationsTimeout(model, ops, time.Minute)
		fmt.Printf("%s: %d operations, linearizable: %s\n", key, len(ops), result)
		if result != porcupine.Ok {
			code = 1
		}
	}
	os.Exit(code)
}
