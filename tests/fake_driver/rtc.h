/* FIXTURE. The run-time compiler; RTC, CODE, KIND and ARCH_OPTION are the vendor's. */

struct program {
    char *source, *code, *log;
    size_t bytes;
};

int RTC(Version)(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return OK;
}

const char *RTC(GetErrorString)(int result)
{
    return result ? "an error of the fixture" : "success";
}

int RTC(CreateProgram)(struct program **program, const char *source, const char *name, int count,
                       const char *const *headers, const char *const *names)
{
    (void)name, (void)count, (void)headers, (void)names;
    ENTER;
    *program = calloc(1, sizeof **program);
    (*program)->source = strdup(source);
    (*program)->log = strdup("");
    fake_born(PROGRAM);
    return OK;
}

int RTC(CompileProgram)(struct program *program, int count, const char *const *options)
{
    ENTER;
    const char *arch = "";
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], ARCH_OPTION, strlen(ARCH_OPTION)))
            arch = options[i] + strlen(ARCH_OPTION);
    free(program->log);
    int failed = fake_compile(KIND, arch, program->source, &program->code, &program->bytes,
                              &program->log);
    return failed ? 6 : OK;
}

int RTC(GetProgramLogSize)(struct program *program, size_t *bytes)
{
    ENTER;
    *bytes = strlen(program->log) + 1;
    return OK;
}

int RTC(GetProgramLog)(struct program *program, char *log)
{
    ENTER;
    strcpy(log, program->log);
    return OK;
}

int CODE(Size)(struct program *program, size_t *bytes)
{
    ENTER;
    *bytes = program->bytes;
    return OK;
}

int CODE()(struct program *program, char *code)
{
    ENTER;
    memcpy(code, program->code, program->bytes);
    return OK;
}

int RTC(DestroyProgram)(struct program **program)
{
    ENTER;
    free((*program)->source);
    free((*program)->code);
    free((*program)->log);
    free(*program);
    fake_gone(PROGRAM);
    return OK;
}
